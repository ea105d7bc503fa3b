/* Replays the session that test_replays.py describes. Arguments: nsqd's TCP port, nsqlookupd's HTTP
   port, the topic. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char data[65536];

static void check(int holds, const char *otherwise) {
    if (!holds) {
        fprintf(stderr, "%s: %s\n", otherwise, data);
        exit(1);
    }
}

static int connected(const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "no connection");
    return fd;
}

static void send_text(int fd, const char *text) {
    check(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "short write");
}

static void send_sized(int fd, const char *line, const char *body) {
    uint32_t size = htonl(strlen(body));
    send_text(fd, line);
    check(write(fd, &size, 4) == 4, "short write");
    send_text(fd, body);
}

static uint32_t frame(int fd) {
    uint32_t start[2];
    check(recv(fd, start, 8, MSG_WAITALL) == 8, "closed");
    ssize_t size = (ssize_t)ntohl(start[0]) - 4;
    check(size >= 0 && size < (ssize_t)sizeof data, "size");
    check(recv(fd, data, size, MSG_WAITALL) == size, "closed");
    data[size] = 0;
    return ntohl(start[1]);
}

static void expect(int fd, const char *answer) {
    check(frame(fd) == 0 && strcmp(data, answer) == 0, answer);
}

int main(int count, char **arguments) {
    char line[256];
    check(count == 4, "three arguments");
    const char *topic = arguments[3];
    int lookup = connected(arguments[2]);
    snprintf(line, sizeof line,
             "GET /lookup?topic=%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", topic);
    send_text(lookup, line);
    check(recv(lookup, data, sizeof data - 1, MSG_WAITALL) > 0, "no answer");
    check(strstr(data, "\r\nX-Nsq-Content-Type: nsq; version=1.0\r\n") != NULL, "headers");
    memset(data, 0, sizeof data);

    int nsqd = connected(arguments[1]);
    send_sized(nsqd, "  V2IDENTIFY\n", "{\"client_id\":\"replay.c\",\"feature_negotiation\":true}");
    frame(nsqd);
    check(strstr(data, "\"tls_v1\":false") != NULL, "no tls_v1");
    check(strstr(data, "\"max_rdy_count\":2500") != NULL, "no max_rdy_count");
    snprintf(line, sizeof line, "PUB %s\n", topic);
    send_sized(nsqd, line, "hello");
    expect(nsqd, "OK");
    snprintf(line, sizeof line, "SUB %s c\n", topic);
    send_text(nsqd, line);
    expect(nsqd, "OK");
    send_text(nsqd, "RDY 1\n");
    check(frame(nsqd) == 2 && strcmp(data + 26, "hello") == 0, "message");
    snprintf(line, sizeof line, "FIN %.16s\nCLS\n", data + 10);
    send_text(nsqd, line);
    expect(nsqd, "CLOSE_WAIT");
    return 0;
}
