/* examples/array/array.c - an array that lives in another process: slices of it are read and written by index, many elements
 * that lie apart in one go, single ones atomically.
 *
 *     array                                   both sides on this machine
 *     array own tcp://0.0.0.0:13337           one side each, also on two machines
 *     array use tcp://192.0.2.7:13337
 *
 * The owner exposes a region under a name and has nothing else to do: reads and writes are the library's business. The user
 * finds it by that name. On one machine its memory is mapped and an access is a copy; from elsewhere each access is asked for
 * and checked. The code is the same, and so are the errors. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

enum { COUNT = 100000, SLICE = 4096, SCATTERED = 100 };
enum { CHANGED = 1, TAKE_BACK = 2, DONE = 3 }; /* what the user tells the owner beside a write */

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 10 * WEFT_SECOND))

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* --- the array, as its user sees it -------------------------------------------------------------------------------------- */

/* Element i lies at byte 8 * i of the region. */
struct array {
    weft_ep_t *ep;
    weft_remote_t *remote;
    uint64_t count;
};

/* Attach the region of that name. Whoever is connected may: names are for what all peers may have, keys for the rest. */
static void array_open(struct array *a, weft_ep_t *ep, const char *name)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_remote_find(ep, name, NULL, &op));
    WAIT(op);
    a->ep = ep;
    a->remote = weft_op_remote(&op);
    a->count = op.len / sizeof(int64_t);
}

static void array_close(struct array *a)
{
    weft_remote_drop(a->remote);
}

static weft_status_t array_read(struct array *a, uint64_t first, uint64_t n, int64_t *out)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t status = weft_rma_read(a->remote, 8 * first, out, 8 * n, &op);
    return status ? status : weft_op_wait(&op, 10 * WEFT_SECOND);
}

/* Write a long stretch in slices that are all on their way at once, and wait for all of them. */
static void array_write(struct array *a, uint64_t first, uint64_t n, const int64_t *values)
{
    weft_op_t ops[COUNT / SLICE + 1] = {0}, *all[COUNT / SLICE + 1];
    size_t k = 0;
    for (uint64_t at = 0; at < n; at += SLICE, k++) {
        uint64_t len = n - at < SLICE ? n - at : SLICE;
        all[k] = &ops[k];
        MUST(weft_rma_write(a->remote, 8 * (first + at), values + at, 8 * len, &ops[k]));
    }
    MUST(weft_op_wait_all(all, k, 10 * WEFT_SECOND));
}

/* Elements that lie apart, in one post: they travel together and are answered together. */
static void array_gather(struct array *a, const uint64_t *index, size_t n, int64_t *out)
{
    weft_rma_item_t items[SCATTERED];
    weft_op_t op = WEFT_OP_INIT;
    for (size_t i = 0; i < n; i++)
        items[i] = (weft_rma_item_t){
            .remote = a->remote, .what = WEFT_RMA_DO_READ, .offset = 8 * index[i], .buf = &out[i], .len = sizeof *out};
    MUST(weft_rma_batch(items, n, &op));
    WAIT(op);
    check(op.len == n, "some elements could not be read");
}

/* Add to one element, whoever else does at the same time; what it was before. */
static int64_t array_add(struct array *a, uint64_t i, int64_t value)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_rma_atomic(a->remote, WEFT_RMA_ADD, 8 * i, 8, (uint64_t)value, 0, &op));
    WAIT(op);
    return (int64_t)op.value;
}

/* Make one element at least `value`: compare-and-swap is what everything else can be made of. */
static void array_raise(struct array *a, uint64_t i, int64_t value)
{
    int64_t seen;
    MUST(array_read(a, i, 1, &seen));
    while (seen < value) {
        weft_op_t op = WEFT_OP_INIT;
        MUST(weft_rma_atomic(a->remote, WEFT_RMA_CAS, 8 * i, 8, (uint64_t)value, (uint64_t)seen, &op));
        WAIT(op);
        if ((int64_t)op.value == seen)
            break; /* nobody was faster */
        seen = (int64_t)op.value;
    }
}

/* Write, and tell the owner which bytes changed, with a number of our own. */
static void array_tell(struct array *a, uint64_t first, uint64_t n, const int64_t *values, uint64_t what)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_rma_write_notify(a->remote, 8 * first, values, 8 * n, what, &op));
    WAIT(op);
}

/* --- its user -------------------------------------------------------------------------------------------------------- */

/* What does not work says so, and touches nothing. */
static void show_errors(struct array *a)
{
    struct array notice;
    int64_t values[2] = {0};
    weft_op_t op = WEFT_OP_INIT;

    weft_status_t status = array_read(a, a->count - 1, 2, values); /* one more than there is */
    printf("user: past the end: %s\n", weft_status_name(status));
    check(status == WEFT_ERR_RANGE, "that should have been out of range");

    array_open(&notice, a->ep, "notice"); /* whoever finds this one by its name may only read it */
    MUST(array_read(&notice, 0, 1, values));
    status = weft_rma_write(notice.remote, 0, values, sizeof *values, &op);
    if (!status)
        status = weft_op_wait(&op, 10 * WEFT_SECOND);
    printf("user: a write where only reads are allowed: %s\n", weft_status_name(status));
    check(status == WEFT_ERR_RIGHTS, "that should not have been allowed");
    array_close(&notice);

    array_tell(a, 0, 0, NULL, TAKE_BACK); /* the owner revokes what it has given out */
    do
        status = array_read(a, 0, 1, values);
    while (status == WEFT_OK);
    printf("user: after it was revoked: %s\n", weft_status_name(status));
    check(status == WEFT_ERR_STALE, "that should have been stale");
    array_close(a);
    array_open(a, a->ep, "array"); /* the name stands for what is there now */
    MUST(array_read(a, 0, 1, values));
}

static void use(const char *uri)
{
    static int64_t squares[COUNT], back[COUNT];
    weft_runtime_t *rt;
    weft_ep_t *ep;
    struct array a;
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_ep_open(rt, uri, NULL, &op, &ep));
    WAIT(op);
    array_open(&a, ep, "array");
    MUST(weft_remote_get_info(a.remote, &info));
    printf("user: %" PRIu64 " elements over the %s path\n", a.count, weft_rma_path_name(info.path));
    check(a.count == COUNT, "the array has another length");

    for (int64_t i = 0; i < COUNT; i++)
        squares[i] = i * i;
    array_write(&a, 0, COUNT, squares);
    MUST(array_read(&a, 0, COUNT, back));
    check(!memcmp(squares, back, sizeof back), "what was read is not what was written");

    uint64_t index[SCATTERED];
    for (int i = 0; i < SCATTERED; i++)
        index[i] = (uint64_t)i * 7919 % COUNT;
    array_gather(&a, index, SCATTERED, back);
    for (int i = 0; i < SCATTERED; i++)
        check(back[i] == squares[index[i]], "a gathered element is not what was written");

    check(array_add(&a, 3, 1) == 9 && array_add(&a, 3, 1) == 10, "3 * 3 and one more");
    array_raise(&a, 4, 1000);
    array_raise(&a, 4, 17); /* it is more already */
    MUST(array_read(&a, 3, 2, back));
    check(back[0] == 11 && back[1] == 1000, "what atomics left");

    array_tell(&a, 10, 2, (int64_t[]){-1, -2}, CHANGED);
    show_errors(&a);
    array_tell(&a, 0, 0, NULL, DONE);
    array_close(&a);
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
    MUST(weft_runtime_close(rt));
}

/* --- its owner ------------------------------------------------------------------------------------------------------- */

/* Runs in progress, when the bytes are there. It may do everything but wait. */
static void changed(weft_region_t *region, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    const int64_t *array = weft_region_base(region);
    (void)from;
    if (value == CHANGED) {
        printf("owner: elements %" PRIu64 " to %" PRIu64 " changed; the first is %" PRId64 "\n", offset / 8,
               (offset + len) / 8 - 1, array[offset / 8]);
    } else if (value == TAKE_BACK) {
        printf("owner: takes back what was given out\n");
        MUST(weft_region_revoke(region, NULL));
    } else if (value == DONE) {
        *(bool *)user = true;
    }
}

static void own(const char *uri, int tell)
{
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_region_t *region, *notice;
    weft_region_opts_t opts = WEFT_REGION_OPTS_INIT, read_only = WEFT_REGION_OPTS_INIT;
    weft_region_info_t info = WEFT_REGION_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    int64_t fixed[1] = {42};
    bool done = false;
    MUST(weft_runtime_open(NULL, &rt));

    opts.len = 8 * (uint64_t)COUNT;
    opts.name = "array";
    opts.notify = changed;
    opts.user = &done;
    MUST(weft_region_new(rt, &opts, &region)); /* the library makes the memory: peers on this machine may map it */

    read_only.buf = fixed; /* memory of our own: each access goes through the library here */
    read_only.len = sizeof fixed;
    read_only.name = "notice";
    read_only.name_rights = WEFT_RMA_READ;
    MUST(weft_region_new(rt, &read_only, &notice));

    MUST(weft_listen(rt, uri, NULL, &listener)); /* now that there is something to find */
    if (tell < 0)
        printf("owner: listens on %s\n", weft_listener_uri(listener));
    else if (dprintf(tell, "%s", weft_listener_uri(listener)) > 0)
        close(tell);
    MUST(weft_listener_accept(listener, &op));
    MUST(weft_op_wait(&op, tell < 0 ? WEFT_FOREVER : 10 * WEFT_SECOND));
    weft_ep_t *ep = weft_op_ep(&op);

    weft_op_t tick = WEFT_OP_INIT;
    for (int i = 0; !done && i < 3000; i++) { /* whoever waits drives, and so serves: for half a minute at most */
        MUST(weft_timer_start(rt, 10 * WEFT_MILLISECOND, &tick));
        WAIT(tick);
    }
    check(done, "the user is not done");
    const int64_t *array = weft_region_base(region);
    MUST(weft_region_get_info(region, &info));
    printf("owner: element 4 is %" PRId64 "; %" PRIu64 " reads and %" PRIu64 " writes were asked for, %" PRIu64 " refused\n",
           array[4], info.reads, info.writes, info.refused);
    check(array[4] == 1000 && array[COUNT - 1] == (int64_t)(COUNT - 1) * (COUNT - 1), "the array is not as its user left it");

    MUST(weft_region_free(region, &op)); /* nobody touches the memory any more when this is complete */
    WAIT(op);
    MUST(weft_region_free(notice, &op));
    WAIT(op);
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(rt));
}

/* --- both ------------------------------------------------------------------------------------------------------------ */

static int both(void)
{
    int to_child[2], status;
    if (pipe(to_child)) {
        perror("pipe");
        return 1;
    }
    pid_t child = fork(); /* before weft_runtime_open(): a runtime belongs to the process that opened it */
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        char uri[128];
        close(to_child[1]);
        ssize_t n = read(to_child[0], uri, sizeof uri - 1);
        if (n <= 0)
            return 1; /* the parent has said why */
        uri[n] = '\0';
        use(uri);
        return 0;
    }
    close(to_child[0]);
    own("tcp://127.0.0.1:0", to_child[1]);
    if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* two processes write to it: a line at a time */
    if (argc == 1)
        return both();
    if (argc == 3 && !strcmp(argv[1], "own"))
        own(argv[2], -1);
    else if (argc == 3 && !strcmp(argv[1], "use"))
        use(argv[2]);
    else {
        fprintf(stderr, "usage: %s [own URI | use URI]\n", argv[0]);
        return 2;
    }
    return 0;
}
