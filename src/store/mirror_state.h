/* store/mirror_state.h - what a mirror is made of: members, operations, pieces, and the turn in which all of it moves.
 *
 * Everything belongs to the driver, except what says otherwise. Whatever happens (a completion, a timer, a call) is noted where
 * it happens, and ends with wefti_mirror_turn(), which does what has become possible: no function here is called from the
 * middle of another one's work. On a runtime with several shards the driver is the head's. What the stores of other shards do
 * completes there, and is brought here (mir_child_t).
 *
 * Epochs. A configuration is a set of members under a writer; an epoch is its number times 2^24, and an attempt to take it over
 * is one more. A configuration follows another in one of two ways: its writer stores the next one on those that it goes on
 * with, when the leases of the others are over; or a new writer first stores an attempt on every member of it, which nobody is
 * served from, and then the next one. Each store is a compare-and-swap, and every two ways meet on at least one member: so
 * there is at most one configuration of a number, and who is not its writer finds that out. (`force` leaves members out of
 * this, on an operator's word.) */
#ifndef WEFTI_MIRROR_STATE_H
#define WEFTI_MIRROR_STATE_H

#include <pthread.h>

#include "base/rarely.h"
#include "base/spares.h"
#include "store/mirror_layout.h"
#include "store/replica.h"
#include "store/state.h"

#define MIR_ATTEMPTS 24u /* bits of an epoch */
static inline uint64_t mir_config(uint64_t epoch) { return epoch >> MIR_ATTEMPTS; }
static inline uint64_t mir_next_config(uint64_t epoch) { return (mir_config(epoch) + 1) << MIR_ATTEMPTS; }

#define MIR_LEASE (2 * WEFT_SECOND)      /* where nothing else is said */
#define MIR_ASK (5 * WEFT_SECOND)        /* how long an answer is waited for while a writer opens */
#define MIR_ANSWER (50 * WEFT_MILLISECOND) /* ... and later, where its lease is shorter than that */
#define MIR_GATHER (50 * WEFT_MILLISECOND) /* for how long a reader that has found a member waits for the answers of others */
#define MIR_AGAIN (2 * WEFT_MILLISECOND) /* until something is tried again for which there was no memory */
#define MIR_RETRIES 100u
#define MIR_TRIES 8u                     /* takings over, when others do the same */
#define MIR_READS 256u                   /* pieces under way */
#define MIR_WRITES 256u
#define MIR_SCAN 32u
#define MIR_MENDS 16u
#define MIR_LOCKS 64u

typedef struct mir_piece mir_piece_t;

/* An operation of ours. fn, of the mirror's driver, is called when it is complete. */
typedef struct mir_child {
    weft_op_t op;
    weft_mirror_t *m;
    weft_op_fn fn;
    void *user;
    struct mir_child *next;      /* m->home */
} mir_child_t;

/* What is asked of a server: a request about its replica (STORE_R_*), or to attach the key of its last answer. */
enum { ASK_NONE, ASK_ATTACH = STORE_KINDS };

/* A place for a member; `state` 0: it is empty. */
typedef struct mir_member {
    weft_mirror_t *m;
    weft_store_t *store;         /* a reference */
    uint8_t server[WEFT_STORE_ID];
    uint8_t state;               /* 0, or a weft_member_state_t. A reader's: UP where it has a remote */
    uint8_t asking;              /* STORE_R_*, ASK_*: op is under way */
    uint8_t again;               /* sets that were answered with WEFT_ERR_AGAIN */
    bool resetting;              /* a set is under way: accesses fail meanwhile, and are done again */
    bool lapsed;                 /* UP, and it said that its lease is over, or somebody else is its writer: the next set tells */
    bool served;                 /* it may answer readers until heard + lease, if nothing is done */
    bool listed;                 /* a configuration that has it was sent to someone: another one without it has to follow before
                                    anything is complete that it does not have */
    bool left_out;               /* LOST, and not in the configuration that is being set */
    bool renewing;
    bool asked;                  /* opening: the request that counts was granted; a reader's: an answer is due */
    bool fresh;                  /* a reader's: `got` was not looked at yet */
    weft_status_t got;
    weft_status_t why;           /* it was lost */
    weft_remote_t *remote;       /* NULL: none */
    uint32_t use;                /* counts remotes: what happens to an access through an earlier one is no news */
    uint32_t under_way;          /* accesses */
    uint64_t epoch;              /* of its record */
    uint64_t stamp, heard;       /* the last one, and when it came */
    mir_child_t ask, renewal;
    uint64_t renew_epoch;
    wefti_replica_answer_t answer, renewed;
} mir_member_t;

/* Where a mirror is. */
enum {
    MIR_MAKING = 1, /* make at every server */
    MIR_UNDOING,    /* that failed: remove what was made */
    MIR_ASKING,     /* get at every server */
    MIR_PAUSING,    /* others take it over too: wait a little, and ask again */
    MIR_TAKING,     /* set at every member, for nobody to be served from */
    MIR_AGREEING,   /* make their copies the same */
    MIR_FIRST,      /* set the first configuration */
    MIR_UP,         /* the program has it */
    MIR_CLOSING,    /* it does not any more; writes go on */
    MIR_SEALING,
    MIR_GONE        /* wait for what is under way, and free it */
};

enum { ADD_NONE, ADD_PLACE, ADD_ASK, ADD_TAKE, ADD_COPY, ADD_JOIN };

/* Every unit, one after the other: to agree, or to refill a member. */
typedef struct mir_scan {
    bool on;
    uint8_t kind;                /* of its pieces */
    uint32_t under_way;
    uint64_t next, done, end;
    weft_status_t failed;
} mir_scan_t;

struct weft_mirror {
    wefti_handle_t handle;       /* open until the program closes it */
    weft_runtime_t *rt;          /* up to here it can be read when it was freed */
    wefti_list_t link;           /* store_state_t.mirrors */
    char *name;
    bool writer, make, force, checksums;
    uint64_t len, lease_ns;
    uint64_t origin;             /* which mirror of that name */
    uint8_t id[WEFT_STORE_ID];   /* of this writer */
    uint8_t phase;               /* MIR_* */
    weft_status_t state;         /* what everything ends with from now on */
    mir_member_t at[WEFT_MIRROR_MAX];
    uint64_t epoch;              /* a reader's: the highest it has seen */
    uint64_t accepted;           /* the last one that every member of it has; a reader's: of `rec` */
    wefti_replica_t rec;         /* that is being set; a reader's: the newest that lists its server */
    uint64_t version;            /* of the last unit written */
    uint32_t children;           /* operations of ours under way */
    _Atomic(mir_child_t *) home; /* those that completed on another shard, the last one first */
    weft_ext_call_t home_call;   /* under way while there are any */
    bool sharded;
    bool turning, again, wake;
    bool setting;                /* a configuration is being set */
    bool sealed;                 /* it was found closed: its copies agree */
    bool buried;                 /* everything that waited was told of `state` */
    uint8_t tries;
    weft_status_t undone;        /* why the making is undone */
    weft_op_t *open_op, *close_op, *add_op;
    weft_ext_call_t close_call;     /* where nobody waits for it */
    _Atomic uint32_t coming;     /* calls that are on their way to the driver: it stays until then */
    weft_status_t close_status;
    wefti_rarely_t rarely;       /* copies that were changed, by member */

    /* a reader's members: mirror_find.c */
    bool seek;                   /* it is time to ask all servers, or will be at seek_at */
    bool judged;                 /* that the last round found nothing was dealt with */
    uint64_t seek_at;
    uint64_t found_at;           /* when the first answer of a round came that gives something to read from; 0: none did */
    uint64_t barren_since;       /* rounds have found nothing since then; 0: the last one did */

    weft_ext_timer_t timer;
    uint64_t renew_at, fence_at, retry_at, find_at; /* WEFT_FOREVER: not */

    /* operations and pieces: mirror_io.c */
    wefti_list_t reads, writes;  /* operations with bytes for which no piece was made yet; mir_io_t.link */
    wefti_list_t begun;          /* the others */
    wefti_list_t pieces;         /* all: mir_piece_t.link */
    wefti_list_t ready;          /* to be stepped: mir_piece_t.ready_link */
    wefti_list_t locks[MIR_LOCKS]; /* mir_piece_t.lock_link: of those of one unit, the first has it */
    wefti_spares_t spare;
    uint32_t n_reads, n_writes, n_mends;
    uint32_t prefer;             /* which member is read from */

    mir_scan_t scan;
    uint8_t adding;              /* ADD_* */
    mir_member_t *added;         /* from ADD_ASK on */
    weft_store_t *add_store;     /* a reference, while ADD_PLACE */
    wefti_replica_t add_rec;

    pthread_mutex_t lock;        /* of `shown`, for any thread */
    weft_mirror_info_t shown;
    uint64_t failovers, mended;
};

/* In the scratch of a read or a write. */
typedef struct mir_io {
    weft_mirror_t *m;
    weft_op_t *op;
    wefti_list_t link;           /* weft_mirror_t.reads, .writes or .begun */
    uint8_t *buf;
    uint64_t offset, len;
    uint64_t begun;              /* bytes */
    uint32_t pieces;             /* under way */
    bool write;
} mir_io_t;
static inline mir_io_t *mir_io(weft_op_t *op) { return weft_ext_scratch(op, mir_io_t); }

enum { PIECE_READ = 1, PIECE_WRITE, PIECE_AGREE, PIECE_COPY };
enum { STEP_PEEK, STEP_READ, STEP_WRITE };

typedef struct mir_access {
    mir_child_t child;
    mir_piece_t *p;
    uint32_t use;
} mir_access_t;

/* One unit of a read, of a write, or of the work that keeps copies the same. Its bytes are its own, so that nothing of the
 * program's is borrowed longer than its operation lasts. */
struct mir_piece {
    wefti_list_t link, ready_link, lock_link;
    weft_mirror_t *m;
    weft_op_t *io;               /* NULL: nobody waits for it */
    uint8_t *user;               /* of io: where its bytes are */
    uint64_t unit;
    uint32_t from, n;            /* the bytes that are meant */
    uint8_t kind, step;
    bool locks;                  /* it is in locks[] */
    bool mend, scan;             /* what an AGREE or COPY is for */
    bool over;                   /* freed when no access is under way */
    /* bits of members */
    uint8_t out;                 /* an access is under way */
    uint8_t have;                /* it has what is to be written; of reads in parallel: it has answered */
    uint8_t tried;               /* it did not answer in time */
    uint8_t bad;                 /* its copy does not match */
    bool sought;                 /* ... and there was a round for the sake of others */
    uint8_t differs;             /* AGREE: to be written anew */
    uint8_t retries;
    uint64_t patience;
    mir_access_t to[WEFT_MIRROR_MAX];
    uint8_t bytes[];             /* MIR_STRIDE; an AGREE has one for each member */
};

/* How long an answer is waited for. */
static inline uint64_t mir_patience(const weft_mirror_t *m) { return m->lease_ns > MIR_ANSWER ? m->lease_ns : MIR_ANSWER; }
static inline unsigned mir_index(const mir_member_t *mb) { return (unsigned)(mb - mb->m->at); }
static inline uint8_t mir_bit(const mir_member_t *mb) { return (uint8_t)(1u << mir_index(mb)); }
#define mir_each(mb, m) for (mir_member_t *mb = (m)->at; mb < (m)->at + WEFT_MIRROR_MAX; mb++)
/* Can it be read from, now? */
static inline bool mir_usable(const mir_member_t *mb) { return mb->state == WEFT_MEMBER_UP && mb->remote && !mb->resetting; }
/* Does it get writes? */
static inline bool mir_gets(const mir_member_t *mb) { return mb->state == WEFT_MEMBER_UP || mb->state == WEFT_MEMBER_REFILLING; }

/* --- mirror.c: its life  ---------------------------------------------------------------------------------------------- */

void wefti_mirror_turn(weft_mirror_t *m); /* it may be gone after this */
/* Make an operation ready to be posted. Whoever posts it counts it in `children`. */
void wefti_mirror_child(mir_child_t *c, weft_mirror_t *m, weft_op_fn fn, void *user, uint64_t timeout_ns);
void wefti_mirror_came_home(weft_ext_call_t *call); /* of home_call */
void wefti_mirror_on_timer(weft_ext_timer_t *t);
void wefti_mirror_close_begin(weft_mirror_t *m);
/* Nothing works any more, for this reason. Takes effect in the turn. */
void wefti_mirror_die(weft_mirror_t *m, weft_status_t why);
/* Something has changed that pieces wait for. */
static inline void mir_wake(weft_mirror_t *m) { m->wake = m->again = true; }
/* Have a turn at that time. */
static inline void mir_at(uint64_t *which, uint64_t when)
{
    if (when < *which)
        *which = when;
}
void wefti_mirror_shutdown(weft_runtime_t *rt); /* the runtime closes */
/* A call of any thread, whose operation has the mirror as the first field of its scratch. Look at the mirror: it stays until
 * prepare. WEFT_ERR_INVALID, _CLOSED, _FORKED. Then prepare, with what the look came to: counted as coming if that is WEFT_OK.
 * Then fill in the scratch and go. */
void wefti_mirror_free(weft_mirror_t *m); /* mirror_call.c */
weft_status_t wefti_mirror_enter(weft_mirror_t *m);
weft_status_t wefti_mirror_prepare(weft_mirror_t *m, weft_op_t *op, const weft_op_kind_t *kind, weft_status_t st);
weft_status_t wefti_mirror_go(weft_mirror_t *m, weft_op_t *op);
/* On the driver: it has arrived. `st`: it does not begin; the mirror may be gone then. */
weft_status_t wefti_mirror_came(weft_op_t *op, weft_status_t st);

/* --- mirror_member.c: servers, leases, configurations  ---------------------------------------------------------------- */

/* Ask something of a server. The answer, or an error at once, comes to the function for what the member is about: *_asked(). */
void wefti_mirror_ask(mir_member_t *mb, uint8_t what);
bool wefti_mirror_asks(const weft_mirror_t *m); /* of any */
void wefti_mirror_take_store(mir_member_t *mb, weft_store_t *store); /* into an empty place; its reference too */
void wefti_mirror_leave_store(mir_member_t *mb);                     /* the place is empty */
void wefti_mirror_drop_remote(mir_member_t *mb);
void wefti_mirror_lose(mir_member_t *mb, weft_status_t why);
/* An access or a post failed: what does that say of the member? true: try again later, there was no memory here. */
bool wefti_mirror_failed(mir_member_t *mb, uint32_t use, weft_status_t st);
bool wefti_mirror_settled(const weft_mirror_t *m); /* writes can be complete */
void wefti_mirror_set(weft_mirror_t *m);           /* the next configuration, of those that are UP, and of the one that was
                                                      refilled */
void wefti_mirror_config_turn(weft_mirror_t *m);
void wefti_mirror_renew(weft_mirror_t *m);         /* it is time to */
/* Is this a record that a mirror of ours can have? wire.c has checked it, for what any replica can have. */
bool wefti_mirror_sane(const wefti_replica_answer_t *a);
void wefti_mirror_adopt(weft_mirror_t *m, const wefti_replica_t *rec);
/* A record of what the mirror is now, as of this writer, without members. */
void wefti_mirror_record(const weft_mirror_t *m, uint64_t epoch, uint32_t flags, wefti_replica_t *rec_out);
bool wefti_mirror_lists(const wefti_replica_t *rec, const uint8_t server[WEFT_STORE_ID]);

/* --- mirror_open.c, mirror_find.c  ------------------------------------------------------------------------------------ */

void wefti_mirror_open_begin(weft_mirror_t *m);
void wefti_mirror_open_turn(weft_mirror_t *m);
void wefti_mirror_open_asked(mir_member_t *mb, uint8_t what, weft_status_t st);
void wefti_mirror_opened(weft_mirror_t *m);
void wefti_mirror_find(weft_mirror_t *m);          /* a reader has nobody to read from */
/* The copies of those that can be used are all bad: is a reader to wait for others? Then it is woken. */
bool wefti_mirror_find_more(weft_mirror_t *m, uint8_t bad, bool *sought);
void wefti_mirror_find_asked(mir_member_t *mb, uint8_t what, weft_status_t st);
void wefti_mirror_find_turn(weft_mirror_t *m);

/* --- mirror_io.c  ----------------------------------------------------------------------------------------------------- */

void wefti_mirror_begin(weft_mirror_t *m);         /* pieces of operations that wait, as many as may be under way */
uint64_t wefti_mirror_why(const weft_mirror_t *m, weft_status_t why); /* the detail of what fails with that: base/detail.h */
void wefti_mirror_io_fail(weft_op_t *op, weft_status_t why);
void wefti_mirror_io_fail_all(weft_mirror_t *m, bool reads, bool writes, weft_status_t why);
mir_piece_t *wefti_mirror_piece(weft_mirror_t *m, uint8_t kind, uint64_t unit); /* NULL: no memory */
void wefti_mirror_piece_ready(mir_piece_t *p);
void wefti_mirror_piece_end(mir_piece_t *p);       /* out of every list; freed when no access is under way */
void wefti_mirror_piece_retry(mir_piece_t *p, weft_status_t st); /* there was no memory: later, or never */
weft_status_t wefti_mirror_access(mir_piece_t *p, mir_member_t *mb, bool write, uint8_t *bytes, uint32_t from, uint32_t n,
                                  uint64_t timeout_ns);
/* Read the unit from one member after the other until one has it: true when p->bytes are good. Otherwise it waits, or has
 * ended with an error: *failed_out. */
bool wefti_mirror_read_one(mir_piece_t *p, weft_status_t *failed_out);
void wefti_mirror_pieces_step(weft_mirror_t *m);
void wefti_mirror_pieces_free(weft_mirror_t *m);
/* An access of it, other than the read of one member, has ended. */
void wefti_mirror_write_answer(mir_piece_t *p, mir_member_t *mb, weft_status_t st);
bool wefti_mirror_has_lock(const mir_piece_t *p);

/* --- mirror_fix.c: agreement, mending, refilling  --------------------------------------------------------------------- */

void wefti_mirror_fix_step(mir_piece_t *p);
void wefti_mirror_mend(weft_mirror_t *m, uint64_t unit);
void wefti_mirror_scan(weft_mirror_t *m, uint8_t kind);
void wefti_mirror_scan_turn(weft_mirror_t *m);
void wefti_mirror_add_asked(mir_member_t *mb, uint8_t what, weft_status_t st);
void wefti_mirror_add_turn(weft_mirror_t *m);
void wefti_mirror_add_end(weft_mirror_t *m, weft_status_t why);
void wefti_mirror_add_abort(weft_mirror_t *m); /* unless it is too late for that */

#endif
