#!/usr/bin/env bash
# pod.sh FOLDER USER LINE PATH...: make a machine a pod of an MPIJob, as Kubeflow's operator does.
#
# Writes an /etc of the machine's own.  There LINE, that of the Dockerfile, writes ssh's settings, USER
# gets a line in passwd with / as home, and the keys and the hostfile in FOLDER lie where the operator
# mounts them.  The PATHs below /root, which no other user may enter, stay readable for USER.
set -eu
folder=$1 user=$2 line=$3
shift 3

cp -a /etc /tmp/etc
mount --bind /tmp/etc /etc
sh -euc "$line"
echo "pod:x:$user:$user::/:/bin/sh" >>/etc/passwd
mkdir -p /etc/ssh/job /etc/mpi
cp "$folder/id_rsa" "$folder/id_rsa.pub" /etc/ssh/job
cp "$folder/id_rsa.pub" /etc/ssh/job/authorized_keys
cp "$folder/hostfile" /etc/mpi
chmod 644 /etc/ssh/job/* /etc/mpi/hostfile
chmod 1777 /etc/ssh/job  # the mode of the folder of a Secret

mkdir /tmp/kept
mount --bind /root /tmp/kept
mount -t tmpfs -o mode=755 tmpfs /root
for path in "$@"; do
    case $path in
        /root/*)
            mkdir -p "$path"
            mount --bind "/tmp/kept${path#/root}" "$path"
            ;;
    esac
done
umount /tmp/kept
