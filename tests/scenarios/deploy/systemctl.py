"""Takes the place of systemctl in a root without systemd: starts, reloads and stops the units.

A unit's process gets the user, the folders, the umask and the read-only file system that its unit
names, and counts as started when it has said so (Type=notify).
"""

import os
import pwd
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PLACES = {"StateDirectory": "/var/lib", "LogsDirectory": "/var/log"}
STRICT = 'for d; do mount --bind "$d" "$d"; done; mount -o remount,bind,ro /'
SECONDS_MAX = 60


def settings(unit: str) -> dict[str, str]:
    text = Path(f"/etc/systemd/system/{unit}.service").read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


def pid_of(unit: str) -> int:
    file = Path(f"/run/{unit}.pid")
    return int(file.read_text()) if file.exists() else 0


def stop(unit: str) -> None:
    if not (pid := pid_of(unit)):
        return
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + SECONDS_MAX
    while Path(f"/proc/{pid}/exe").exists() and time.monotonic() < end:
        time.sleep(0.05)
    Path(f"/run/{unit}.pid").unlink()


def start(unit: str) -> None:
    said = settings(unit)
    assert (said["ProtectSystem"], said["Type"]) == ("strict", "notify")
    user = pwd.getpwnam(said["User"])
    folders = [f"{place}/{said[key]}" for key, place in PLACES.items() if key in said]
    for key, place in PLACES.items():
        if key in said:
            folder = Path(place, said[key])
            folder.mkdir(exist_ok=True)
            folder.chmod(int(said[f"{key}Mode"], 8))
            os.chown(folder, user.pw_uid, user.pw_gid)
    place = f"/run/{unit}.notify"
    Path(place).unlink(missing_ok=True)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
        open(f"/run/{unit}.log", "a") as log,
    ):
        ready.bind(place)
        os.chown(place, user.pw_uid, user.pw_gid)
        ready.settimeout(SECONDS_MAX)
        shell = f"{STRICT}; umask {said['UMask']}; exec setpriv --reuid={user.pw_uid}"
        shell += f" --regid={user.pw_gid} --clear-groups --no-new-privs {said['ExecStart']}"
        command = ["unshare", "-m", "sh", "-ec", shell, "sh", *folders]
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "NOTIFY_SOCKET": place},
            start_new_session=True,
        )
        Path(f"/run/{unit}.pid").write_text(str(process.pid))
        while b"READY=1" not in ready.recv(4096):
            pass


def reload(unit: str) -> None:
    command = settings(unit)["ExecReload"].replace("$MAINPID", str(pid_of(unit)))
    subprocess.run(shlex.split(command), check=True)


verb, *units = [word for word in sys.argv[1:] if not word.startswith("-")]
for name in units:
    if verb == "reload":
        reload(name)
    else:
        assert verb in ("enable", "restart"), verb
        stop(name)
        start(name)
