/* tests/wire/lib/two.h - a server and a client in one process, for tests of connections: what arrives is recorded. */
#ifndef WEFT_TEST_TWO_H
#define WEFT_TEST_TWO_H

#include <weft/weft.h>

enum { TWO_MAX = 64 };

typedef struct two {
    weft_runtime_t *server, *client;
    weft_listener_t *listener;
    weft_ep_t *accepted[TWO_MAX]; /* by the accept callback, in order */
    int n_accepted;
    int failed[2], closed[2];     /* hooks called: 0 server's endpoints, 1 client's */
    weft_status_t failed_why[2], closed_why[2];
    weft_on_failure_t answer[2];  /* what the failed hooks say */
} two_t;

extern two_t two;
extern uint64_t two_reconnect_ns; /* of the listener; set before two_open(), 0 for the default */

/* Both runtimes, with `opts` for each (NULL: defaults), and a listener on tcp://127.0.0.1:0 whose endpoints go to accepted[].
 * Ends the test if that fails. */
void two_open(const weft_runtime_opts_t *server, const weft_runtime_opts_t *client);
/* Options for an endpoint of the client with the recording hooks. */
weft_ep_opts_t two_ep_opts(void);
/* Connect the client; both ends are up. Returns the client's; the server's is the last of accepted[]. */
weft_ep_t *two_connect(const weft_ep_opts_t *opts);
/* Drive both until op is complete: its status. Ends the test after `seconds`. */
weft_status_t two_wait(weft_op_t *op, double seconds);
void two_run(double seconds);
/* Drive both until the condition holds: false after `seconds`. */
#define TWO_UNTIL(cond, seconds) \
    do { \
        double two_end = test_now() + (seconds); \
        while (!(cond)) { \
            two_drive(); \
            if (test_now() > two_end) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)
void two_drive(void);
void two_close(void);

/* Open file descriptors of this process. */
int two_fds(void);

#endif
