/* tests/lib/redis_server.h - a real Redis server of a test's own: in a folder of its own, on a Unix socket and a loopback port,
 * keeping nothing, and gone with the test however that ends.
 *
 * Debian's redis-tools is enough: its redis-check-rdb is the server's program under another name. */
#ifndef WEFT_TEST_REDIS_SERVER_H
#define WEFT_TEST_REDIS_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct redis_server {
    pid_t pid; /* 0: not running */
    int port;
    char folder[64], password[32], events[16];
    char tcp[128], local[128]; /* its addresses: redis://..., redis+unix://..., with the password */
} redis_server_t;

/* Is there a program to start? */
bool redis_server_here(void);
/* password: NULL for none; events: for notify-keyspace-events, NULL for none. Ends the test if it does not come up. */
void redis_server_start(redis_server_t *s, const char *password, const char *events);
/* Kill it; start it again at the same place, empty. */
void redis_server_kill(redis_server_t *s);
void redis_server_again(redis_server_t *s);
/* An inline command, on a connection of its own: the first line of the reply, in a buffer that the next call uses again. */
const char *redis_server_say(redis_server_t *s, const char *command);
/* Kill it, and remove its folder. */
void redis_server_end(redis_server_t *s);

#endif
