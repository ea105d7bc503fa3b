/* Publishes with libnsq's PUB and MPUB, and consumes through nsqlookupd until all has come, also the
 * message that was published before. Argument: the topic.
 *
 * libnsq's HTTP client calls curl from a callback of curl's, which curl has refused since 7.59, so
 * that no request is ever sent. `drive_curl` makes that call outside the callback. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http.h"
#include "nsq.h"

static const char *const WANTED[] = {"before", "one", "two", "three"};
static int seen, published;

static void send_commands(struct NSQDConnection *conn)
{
    buffered_socket_write_buffer(conn->bs, conn->command_buf);
    buffer_reset(conn->command_buf);
}

static void connected(struct NSQReader *reader, struct NSQDConnection *conn)
{
    const char *bodies[] = {"two", "three"};
    char wishes[] = "{\"client_id\":\"libnsq\",\"feature_negotiation\":true}";
    if (published++) {
        return;
    }
    buffer_reset(conn->command_buf);
    nsq_identify(conn->command_buf, wishes);
    nsq_publish(conn->command_buf, reader->topic, "one");
    nsq_multi_publish(conn->command_buf, reader->topic, bodies, 2);
    send_commands(conn);
}

static void received(struct NSQReader *reader, struct NSQDConnection *conn, struct NSQMessage *message,
                     void *context)
{
    (void)context;
    for (int which = 0; which < 4; which++) {
        if (strlen(WANTED[which]) == message->body_length &&
            memcmp(WANTED[which], message->body, message->body_length) == 0) {
            seen |= 1 << which;
        }
    }
    buffer_reset(conn->command_buf);
    nsq_finish(conn->command_buf, message->id);
    nsq_ready(conn->command_buf, reader->max_in_flight);
    send_commands(conn);
    free_nsq_message(message);
    if (seen == 15) {
        puts("received all 4");
        ev_break(reader->loop, EVBREAK_ALL);
    }
}

static void drive_curl(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct HttpClient *client = timer->data;
    (void)loop;
    (void)events;
    curl_multi_socket_action(client->multi, CURL_SOCKET_TIMEOUT, 0, &client->still_running);
}

int main(int argc, char **argv)
{
    struct ev_loop *loop = ev_default_loop(0);
    struct NSQReader *reader;
    ev_timer often;
    if (argc != 2) {
        return 2;
    }
    reader = new_nsq_reader(loop, argv[1], "c", NULL, NULL, connected, NULL, received);
    nsq_reader_add_nsqlookupd_endpoint(reader, "127.0.0.1", 4161);
    ev_timer_init(&often, drive_curl, 0.1, 0.1);
    often.data = reader->httpc;
    ev_timer_start(loop, &often);
    nsq_run(loop);
    return seen != 15;
}
