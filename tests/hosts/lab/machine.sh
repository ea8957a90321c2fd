#!/usr/bin/env bash
# machine.sh NAME FOLDER PATH...: the first process of a machine, in namespaces of its own.
#
# Gives the machine its name, a /tmp and a /dev/shm.  The PATHs that lie in /tmp stay there.
# FOLDER/hosts becomes /etc/hosts.  Writes FOLDER/ready.NAME, and ends with its standard input.
# All processes of the machine end with it, since it is the first of a process namespace.
set -eu
name=$1 folder=$2
shift 2

hostname "$name"
ip link set lo up
mount --make-rprivate /
mount -t tmpfs -o size=64m tmpfs /dev/shm
# The network's devices, which UCX looks up there, are those of whoever mounts it.
mkdir "$folder/cgroup.$name"
mount --rbind /sys/fs/cgroup "$folder/cgroup.$name"
mount -t sysfs sysfs /sys
mount --rbind "$folder/cgroup.$name" /sys/fs/cgroup
umount --lazy "$folder/cgroup.$name"
mount --bind "$folder/hosts" /etc/hosts
mkdir "$folder/tmp.$name"
mount -t tmpfs tmpfs "$folder/tmp.$name"
for path in "$folder" "$@"; do
    case $path in
        /tmp/*)
            inside=$folder/tmp.$name${path#/tmp}
            mkdir -p "$inside"
            mount --bind "$path" "$inside"
            ;;
    esac
done
mount --move "$folder/tmp.$name" /tmp
touch "$folder/ready.$name"
# Not `cat`: the shell also reaps the orphans that the first process inherits.
read -r _ || true
