/* tests/fault/lib/flip.c - see flip.h. */
#include "flip.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__x86_64__)

#define PAGE 4096u
#define TRAP_FLAG 0x100

static struct {
    uintptr_t at, end;          /* the bytes */
    uintptr_t pages, pages_end; /* and what they lie in */
    uint8_t *twin;
    const uint8_t *evil;
    unsigned when, touched;
    bool counts; /* the instruction under way touches the bytes, and not only their pages */
    bool stepping;
} flip;

static void protect(int how)
{
    if (mprotect((void *)flip.pages, flip.pages_end - flip.pages, how))
        abort();
}

/* An instruction wants at the pages: let it, and come back behind it. */
static void on_touch(int sig, siginfo_t *info, void *context)
{
    ucontext_t *c = (ucontext_t *)context;
    uintptr_t where = (uintptr_t)info->si_addr;
    if (!flip.pages || flip.stepping || where < flip.pages || where >= flip.pages_end) {
        signal(sig, SIG_DFL); /* a crash like any other: it comes again */
        return;
    }
    flip.counts = where >= flip.at && where < flip.end;
    flip.stepping = true;
    protect(PROT_READ | PROT_WRITE);
    c->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int sig, siginfo_t *info, void *context)
{
    ucontext_t *c = (ucontext_t *)context;
    (void)sig, (void)info;
    c->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
    if (!flip.stepping)
        return;
    flip.stepping = false;
    if (flip.counts && ++flip.touched == flip.when)
        memcpy(flip.twin, flip.evil, flip.end - flip.at);
    protect(PROT_NONE);
}

bool flip_works(void)
{
    return true;
}

void flip_watch(const void *at, void *twin, size_t n, const void *evil, unsigned when)
{
    struct sigaction touch = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO};
    struct sigaction step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    memset(&flip, 0, sizeof flip);
    flip.at = (uintptr_t)at;
    flip.end = flip.at + n;
    flip.pages = flip.at & ~(uintptr_t)(PAGE - 1);
    flip.pages_end = (flip.end + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    flip.twin = (uint8_t *)twin;
    flip.evil = (const uint8_t *)evil;
    flip.when = when;
    if (sigaction(SIGSEGV, &touch, NULL) || sigaction(SIGTRAP, &step, NULL))
        abort();
    protect(PROT_NONE);
}

unsigned flip_unwatch(void)
{
    (void)mprotect((void *)flip.pages, flip.pages_end - flip.pages, PROT_READ | PROT_WRITE); /* it may be gone with its lane */
    signal(SIGSEGV, SIG_DFL);
    signal(SIGTRAP, SIG_DFL);
    flip.pages = 0;
    return flip.touched;
}

#else

bool flip_works(void)
{
    return false;
}

void flip_watch(const void *at, void *twin, size_t n, const void *evil, unsigned when)
{
    (void)at, (void)twin, (void)n, (void)evil, (void)when;
}

unsigned flip_unwatch(void)
{
    return 0;
}

#endif
