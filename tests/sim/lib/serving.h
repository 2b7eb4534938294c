/* tests/sim/lib/serving.h - calls and services as the simulated programs know them: what each call is, what its function is
 * to do, and how often it ran.
 *
 * Every call has a number, which is its first argument; its function looks up there what it has to do, and checks at once
 * whether it may run. The state is that of the seed that runs. */
#ifndef SIM_SERVING_H
#define SIM_SERVING_H

#include <weft/service.h>

#include "world.h"

#define SERVERS 2
#define CLIENTS 3
#define LIVES 12 /* openings of a service */
#define CALLS 300
#define SPOKEN 64
#define BIG_MAX 60000u

enum { PLAIN, AGAIN, BIG, BIG_AGAIN, TELL, COUNT, TOTAL, KINDS };
extern const char *const serving_signatures[KINDS], *const serving_names[KINDS];

/* What its function does. */
typedef enum how { NOW, LATER, NEVER, FAILS, SILENT, LETS_GO, TWICE, HOWS } how_t;

typedef struct life {
    int node;
    weft_service_t *service; /* NULL: closed */
    weft_op_t close;
    bool closing;
} life_t;

typedef struct client client_t;

typedef struct call {
    weft_op_t op, sop; /* sop: of its stream, one at a time */
    weft_reply_t reply;
    weft_call_opts_t opts;
    weft_value_t args[2];
    client_t *c;
    int index, kind;
    how_t how;
    bool live, sop_live, cancelled, once, fresh, over, stream_over, parted;
    weft_stream_t *stream;
    weft_item_t item;
    weft_status_t stream_status;
    uint64_t posted, x, n, at, delay, bound, stopped_before;
    weft_status_t status;
    weft_ran_t ran;
    unsigned runs, tries;
    uint8_t *data;
    uint32_t len, result_len;
} call_t;

/* A request that its function kept. */
typedef struct held {
    weft_request_t *request;
    call_t *call;
    int life;
    unsigned run;
    bool told, waits; /* told: nobody waits for it; waits: `op` is under way */
    weft_op_t op;
    weft_item_t item;
    uint64_t at, sum;
    struct held *next;
} held_t;

struct client {
    int node;
    bool by_uri, both; /* both: its uri names the two servers, and else the first */
    weft_ep_t *ep;
    bool ep_lost;
    weft_client_t *client;
    weft_method_t *methods[KINDS];
    bool closing;
    weft_op_t close;
    int live; /* calls */
};

/* Something that was answered, or that nobody waits for: over which endpoint, under which number. */
typedef struct spoken {
    int node;
    weft_ep_id_t ep;
    uint64_t call;
} spoken_t;

typedef struct serving {
    sim_net_t net;
    bool peace, poor;          /* poor: memory runs out */
    bool forgets;              /* a service remembers so shortly that it may not know whether a call ran that others overtook */
    uint64_t heartbeat;
    life_t lives[LIVES];
    int n_lives, now_open[SERVERS]; /* the life of each server; -1: none */
    call_t *calls[CALLS];
    int n_calls;
    held_t *helds;
    spoken_t spoken[SPOKEN];
    unsigned n_spoken;
} serving_t;
extern serving_t w; /* of the seed that runs */

#define BELOW(n) sim_below(&w.net, (n))
#define CHANCE(percent) sim_odds(&w.net, (percent))

/* Values and bytes that a run of a call gives; byte_of(c, 0, i) are its arguments. */
uint64_t serving_value(const call_t *c, unsigned run);
uint8_t serving_byte(const call_t *c, unsigned run, uint32_t i);

void serving_open(int server);
void serving_close(int server);
void serving_replace(int server);   /* a function goes and comes back, under another slot or check */
void serving_say_again(void);       /* what was said, late and wrong, as an awkward server would */
void serving_let_go(held_t *h);     /* the function gives its request back */
void serving_check_told(void);      /* every call is over, and the world whole: functions that still have requests know it */
void serving_check(void);           /* nobody calls any more: functions know it, and services have nothing else */

#endif
