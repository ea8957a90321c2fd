#!/usr/bin/env bash
# agent.sh [OPTION...] HOST COMMAND...: run a command on another machine, in place of ssh.
#
# Lies beside files `pid.HOST` with the process to enter the machine by.  Like ssh it hands on
# no variables of its caller.
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
pid=$(cat "$(dirname "$0")/pid.$host")
exec nsenter --target "$pid" --net --uts --ipc --mount --pid \
    env -i HOME="$HOME" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -c "cd; $*"
