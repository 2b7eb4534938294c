/* The thread of heartbeats (fabric/sock/beat.c) from within: when it lets go of its lock, and what happens meanwhile. The file
 * is made part of this program, with its names changed, so that the test is there when the lock is let go of. */
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "test.h"

static unsigned let_go_of;
static void (*meanwhile)(void);

static int let_go(pthread_mutex_t *m)
{
    void (*fn)(void) = meanwhile;
    let_go_of++;
    int err = pthread_mutex_unlock(m);
    if (fn)
        fn();
    return err;
}

#define pthread_mutex_unlock let_go
#define wefti_beats_drop test_beats_drop
#define wefti_beat_lock test_beat_lock
#define wefti_beat_unlock test_beat_unlock
#define wefti_beat_stop test_beat_stop
#define wefti_beat_heard test_beat_heard
#define wefti_beat_events test_beat_events
#define wefti_sock_wire_beat test_wire_beat
#define wefti_sock_wire_watch test_wire_watch
#define wefti_sock_wire_beat_once test_wire_beat_once
#include "../../src/fabric/sock/beat.c"

#define HOUR (3600 * WEFT_SECOND)
enum { MANY = 1000 };

static sock_wire_t wires[MANY], late;
static wefti_sock_t whole;

TEST(the_lock_is_let_go_of_in_a_walk_over_many_wires_of_which_none_is_due)
{
    prepare();
    pthread_mutex_lock(&beats.lock);
    for (int i = 0; i < MANY; i++) {
        wefti_pulse_start(&wires[i].pulse, 1000 * HOUR, wefti_clock_ns());
        wefti_list_push_back(&beats.wires, &wires[i].beat_link);
    }
    walk(beats.era);
    CHECK(let_go_of >= MANY / BATCH);
}

/* A wire that is open; the other end of its socket. */
static int open_wire(sock_wire_t *w)
{
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    *w = (sock_wire_t){.sock = &whole, .state = WIRE_OPEN, .fd = fds[0]};
    return fds[1];
}

static void add_late(void)
{
    if (pthread_equal(pthread_self(), beats.thread)) { /* the thread has let go: a driver is there first */
        meanwhile = NULL;
        CHECK_OK(wefti_sock_wire_beat(&late.base, 20 * WEFT_MILLISECOND, false));
    }
}

TEST(a_wire_that_comes_when_the_walk_has_just_passed_the_last_one_is_not_forgotten)
{
    struct pollfd heard = {.fd = open_wire(&late), .events = POLLIN};
    for (int i = 0; i < BATCH; i++) {
        open_wire(&wires[i]);
        CHECK_OK(wefti_sock_wire_beat(&wires[i].base, HOUR, false));
    }
    pthread_mutex_lock(&beats.lock);
    meanwhile = add_late;
    pthread_cond_broadcast(&beats.changed); /* walk now, and not in an hour */
    pthread_mutex_unlock(&beats.lock);
    CHECK_EQ(poll(&heard, 1, 20000), 1);
}
