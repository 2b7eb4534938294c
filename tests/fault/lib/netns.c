/* tests/fault/lib/netns.c - see netns.h. */
#include "netns.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char ns[2][32];
static pid_t maker;

static int run(const char *fmt, const char *a, const char *b)
{
    char cmd[256];
    snprintf(cmd, sizeof cmd, fmt, a, b);
    return system(cmd);
}

static void must(bool fact, const char *what)
{
    if (!fact) {
        perror(what);
        exit(1);
    }
}

static void tear_down(void)
{
    if (getpid() != maker) /* a child that was forked since */
        return;
    for (int i = 0; i < 2; i++)
        run("ip netns del %s%s >/dev/null 2>&1", ns[i], "");
}

/* A veth pair between the two; NULL, or why not. */
static const char *join(const char *prefix, const char *name, const char *net)
{
    char veth[2][16], both[64], addr[64];
    for (int i = 0; i < 2; i++)
        snprintf(veth[i], sizeof veth[i], "%s%d%c", prefix, (int)(getpid() % 100000), 'a' + i);
    snprintf(both, sizeof both, "%s type veth peer name %s", veth[0], veth[1]);
    if (run("ip link add %s%s >/dev/null 2>&1", both, ""))
        return "a veth pair cannot be made here";
    for (int i = 0; i < 2; i++) {
        snprintf(addr, sizeof addr, "%s.%d/24 dev %s", net, i + 1, name);
        snprintf(both, sizeof both, "%s name %s", veth[i], name);
        if (run("ip link set %s netns %s", veth[i], ns[i]) || run("ip -n %s link set %s", ns[i], both) ||
            run("ip -n %s addr add %s", ns[i], addr) || run("ip -n %s link set %s up", ns[i], name) ||
            run("ip -n %s link set lo up%s", ns[i], ""))
            return "the namespaces cannot be configured";
    }
    return NULL;
}

const char *netns_make(void)
{
    for (int i = 0; i < 2; i++)
        snprintf(ns[i], sizeof ns[i], "wefttest%d%c", (int)(getpid() % 100000), 'a' + i);
    if (run("ip netns add %s%s >/dev/null 2>&1", ns[0], ""))
        return "network namespaces cannot be made here (ip netns add failed)";
    maker = getpid();
    atexit(tear_down);
    if (run("ip netns add %s%s >/dev/null 2>&1", ns[1], ""))
        return "network namespaces cannot be made here (ip netns add failed)";
    return join("wft", "eth0", "10.99.0");
}

const char *netns_second(void)
{
    return join("wfu", "eth1", "10.98.0");
}

void netns_enter(int i)
{
    char path[64];
    snprintf(path, sizeof path, "/run/netns/%s", ns[i]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    must(fd >= 0 && !setns(fd, CLONE_NEWNET), "a network namespace");
    close(fd);
}

void netns_link(bool up)
{
    must(!run("ip -n %s link set eth0 %s", ns[0], up ? "up" : "down"), "ip link set");
}

void netns_second_link(bool up)
{
    must(!run("ip -n %s link set eth1 %s", ns[0], up ? "up" : "down"), "ip link set");
}
