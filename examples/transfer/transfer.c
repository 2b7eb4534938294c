/* examples/transfer/transfer.c - parcels from one process to another: a label that says what comes, and contents that the
 * receiver may take in, place where it likes, or refuse.
 *
 *     transfer                                  both sides on this machine
 *     transfer serve tcp://0.0.0.0:13337        one side each, also on two machines
 *     transfer send tcp://192.0.2.7:13337
 *
 * A parcel is an active message: the label is its header, the contents are its payload. Small contents come along with the
 * label; large ones stay in the sender's memory until the receiver has read the label and decided. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

enum { NOTE = 1, PARCEL = 2, RECEIPT = 3 };  /* the ids of our messages */
enum { TOO_LARGE = 1, NO_LABEL = 2 };        /* our reasons to refuse one */
enum { DESK = 1 << 20, LARGEST = 32 << 20 }; /* what is laid on the desk, and what is taken in at all */

/* Plain fixed-width fields: both sides are little-endian, as all of Weft is. */
struct label {
    uint64_t sum;
    char name[24];
};
struct receipt {
    uint64_t sum;
    char place[24];
};

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 10 * WEFT_SECOND))

static uint64_t sum(uint64_t before, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    while (n--)
        before = (before ^ *p++) * 0x100000001b3;
    return before;
}
#define EMPTY 0xcbf29ce484222325 /* the sum of nothing: FNV-1a */

/* --- the receiver ---------------------------------------------------------------------------------------------------- */

/* Called once for each note, in the order they were sent. It may do everything but wait. */
static void on_note(weft_am_t *am, void *user)
{
    (void)user;
    if (am->data)
        printf("receiver: a note: %.*s\n", (int)am->len, (const char *)am->data);
    else
        weft_am_reject(am, TOO_LARGE); /* still at the sender: too long for a note */
}

/* Take contents in as one buffer in the memory of the GPU, or of the host where there is none; their sum. */
static uint64_t store(weft_am_t *am, char *place, size_t place_len)
{
    weft_am_pull_opts_t opts = WEFT_AM_PULL_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    opts.kind = weft_mem_kind_find("cuda");
    if (!opts.kind)
        opts.kind = weft_mem_host();
    MUST(weft_am_pull_with(am, &opts, &op)); /* no buffer given: one is made */
    WAIT(op);
    snprintf(place, place_len, "in %s memory", opts.kind->name);

    void *copy;
    MUST(weft_mem_alloc(NULL, op.len, &copy)); /* the processor cannot add up what lies on a GPU */
    MUST(weft_mem_copy(copy, NULL, op.buf, opts.kind, op.len));
    uint64_t s = sum(EMPTY, copy, op.len);
    weft_mem_free(NULL, copy, op.len);
    weft_mem_free(opts.kind, op.buf, op.len);
    return s;
}

/* One parcel: look at the label and the length, then decide. */
static void take_in(weft_am_t *am, char *desk)
{
    weft_op_t op = WEFT_OP_INIT;
    struct label label;
    struct receipt receipt = {0};
    if (am->header_len != sizeof label) {
        weft_am_reject(am, NO_LABEL);
        return;
    }
    memcpy(&label, am->header, sizeof label);
    label.name[sizeof label.name - 1] = '\0'; /* it came from outside */
    if (am->len > LARGEST) {
        printf("receiver: %s, %" PRIu64 " bytes: refused\n", label.name, am->len);
        weft_am_reject(am, TOO_LARGE);
        return;
    }

    if (am->data) { /* it came along with the label */
        receipt.sum = sum(EMPTY, am->data, am->len);
        snprintf(receipt.place, sizeof receipt.place, "read in place");
    } else if (am->len <= DESK) {
        MUST(weft_am_pull(am, desk, DESK, &op));
        WAIT(op);
        receipt.sum = sum(EMPTY, desk, op.len);
        snprintf(receipt.place, sizeof receipt.place, "on the desk");
    } else {
        receipt.sum = store(am, receipt.place, sizeof receipt.place);
    }
    printf("receiver: %s, %" PRIu64 " bytes: %s, %s\n", label.name, am->len, receipt.place,
           receipt.sum == label.sum ? "intact" : "DAMAGED");

    if (am->reply) {
        MUST(weft_am_send(am->reply, RECEIPT, &receipt, sizeof receipt, NULL, 0, &op));
        WAIT(op);
    }
}

static void serve(const char *uri, int tell)
{
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    char *desk = malloc(DESK);
    if (!desk) {
        perror("malloc");
        exit(1);
    }
    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_am_handle(rt, NOTE, on_note, NULL, NULL));
    MUST(weft_listen(rt, uri, NULL, &listener));
    if (tell < 0)
        printf("receiver: listens on %s\n", weft_listener_uri(listener));
    else if (dprintf(tell, "%s", weft_listener_uri(listener)) > 0)
        close(tell);

    MUST(weft_listener_accept(listener, &op));
    MUST(weft_op_wait(&op, tell < 0 ? WEFT_FOREVER : 10 * WEFT_SECOND));
    weft_ep_t *ep = weft_op_ep(&op);
    MUST(weft_ep_get_info(ep, &info));
    printf("receiver: %s is here, over %s\n", info.peer_name, info.transport);

    for (;;) {
        weft_status_t status = weft_am_take(rt, ep, PARCEL, &op);
        if (!status)
            status = weft_op_wait(&op, WEFT_FOREVER);
        if (status == WEFT_ERR_CLOSED)
            break; /* the sender has closed, and nothing of it is left here */
        must(status, "the next parcel");
        take_in(weft_op_am(&op), desk);
        weft_am_release(weft_op_am(&op));
    }
    printf("receiver: the sender is done\n");
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(rt));
    free(desk);
}

/* --- the sender ------------------------------------------------------------------------------------------------------ */

static struct label label_for(const char *name, const void *bytes, size_t n)
{
    struct label label = {0};
    snprintf(label.name, sizeof label.name, "%s", name);
    label.sum = sum(EMPTY, bytes, n);
    return label;
}

/* What all parcels have in common: the label, and that a receipt is wanted. */
static weft_am_send_opts_t parcel(const struct label *label)
{
    weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
    opts.id = PARCEL;
    opts.header = label;
    opts.header_len = sizeof *label;
    opts.reply = true;
    return opts;
}

/* Wait for the receipt of a parcel, and hold it against what was sent. */
static void check_receipt(weft_ep_t *ep, const struct label *label)
{
    weft_am_recv_opts_t opts = WEFT_AM_RECV_OPTS_INIT;
    struct receipt receipt;
    weft_op_t op = WEFT_OP_INIT;
    opts.ep = ep;
    opts.id = RECEIPT;
    opts.header = &receipt;
    opts.header_cap = sizeof receipt;
    MUST(weft_am_recv(weft_ep_runtime(ep), &opts, &op));
    WAIT(op);
    weft_mem_free(NULL, op.buf, op.len); /* a receipt has no contents: should there be any, a buffer was made for them */
    if (op.header_len != sizeof receipt || receipt.sum != label->sum) {
        fprintf(stderr, "sender: %s did not arrive as it was sent\n", label->name);
        exit(1);
    }
}

/* Borrowed: the buffers are ours again when the operation completes. */
static void send_borrowed(weft_ep_t *ep, const char *name, void *bytes, size_t n)
{
    struct label label = label_for(name, bytes, n);
    weft_am_send_opts_t opts = parcel(&label);
    weft_op_t op = WEFT_OP_INIT;
    opts.buf = bytes;
    opts.len = n;
    MUST(weft_am_send_with(ep, &opts, &op));
    WAIT(op);
    memset(bytes, 0, n);
    check_receipt(ep, &label);
}

static void given_back(void *buf, void *user)
{
    printf("sender: %s is given back\n", (const char *)user);
    free(buf);
}

/* Owned: the library has the buffer from the post on and gives it back once, whatever becomes of the message. No operation is
 *        needed. */
static void send_owned(weft_ep_t *ep, char *name, size_t n)
{
    void *bytes = malloc(n);
    if (!bytes) {
        perror("malloc");
        exit(1);
    }
    memset(bytes, 'o', n);
    struct label label = label_for(name, bytes, n);
    weft_am_send_opts_t opts = parcel(&label);
    opts.buf = bytes;
    opts.len = n;
    opts.release = given_back;
    opts.release_user = name;
    MUST(weft_am_send_with(ep, &opts, NULL));
    check_receipt(ep, &label);
}

/* Several pieces that lie apart here and arrive as one. */
static void send_pieces(weft_ep_t *ep)
{
    static char first[100000], second[50000], third[1];
    weft_iov_t pieces[3] = {{first, sizeof first}, {second, sizeof second}, {third, sizeof third}};
    weft_op_t op = WEFT_OP_INIT;
    memset(first, '1', sizeof first);
    memset(second, '2', sizeof second);
    memset(third, '3', sizeof third);
    struct label label = label_for("three pieces", first, sizeof first);
    for (int i = 1; i < 3; i++)
        label.sum = sum(label.sum, pieces[i].base, pieces[i].len);
    weft_am_send_opts_t opts = parcel(&label);
    opts.iov = pieces;
    opts.iov_n = 3;
    MUST(weft_am_send_with(ep, &opts, &op));
    WAIT(op);
    check_receipt(ep, &label);
}

/* A refusal reaches the sender's operation, and the contents never leave this process. */
static void send_too_large(weft_ep_t *ep)
{
    size_t n = 2 * (size_t)LARGEST;
    void *bytes = calloc(1, n);
    if (!bytes) {
        perror("calloc");
        exit(1);
    }
    struct label label = label_for("an elephant", NULL, 0);
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_am_send(ep, PARCEL, &label, sizeof label, bytes, n, &op));
    weft_status_t status = weft_op_wait(&op, 10 * WEFT_SECOND);
    if (status != WEFT_ERR_REJECTED || op.reason != TOO_LARGE) {
        fprintf(stderr, "sender: the elephant should have been refused: %s\n", weft_status_text(status));
        exit(1);
    }
    printf("sender: %s came back, reason %" PRIu32 "\n", label.name, op.reason);
    free(bytes);
}

/* A small message is out of our hands at once. With `confirm` the operation waits until the receiver is done with it. */
static void send_note(weft_ep_t *ep, const char *text)
{
    weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    opts.id = NOTE;
    opts.buf = text;
    opts.len = strlen(text);
    opts.confirm = true;
    MUST(weft_am_send_with(ep, &opts, &op));
    WAIT(op);
}

static void send_all(const char *uri)
{
    static char small[1024], medium[300000];
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_ep_open(rt, uri, NULL, &op, &ep));
    WAIT(op);

    send_note(ep, "four parcels are on their way, and an elephant");
    memset(small, 's', sizeof small);
    send_borrowed(ep, "a small one", small, sizeof small);
    memset(medium, 'm', sizeof medium);
    send_borrowed(ep, "a larger one", medium, sizeof medium);
    send_pieces(ep);
    send_owned(ep, "a large one", 8 << 20);
    send_too_large(ep);

    MUST(weft_ep_close(ep, &op)); /* loses nothing that was sent */
    WAIT(op);
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
        send_all(uri);
        return 0;
    }
    close(to_child[0]);
    serve("tcp://127.0.0.1:0", to_child[1]);
    if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* two processes write to it: a line at a time */
    if (argc == 1)
        return both();
    if (argc == 3 && !strcmp(argv[1], "serve"))
        serve(argv[2], -1);
    else if (argc == 3 && !strcmp(argv[1], "send"))
        send_all(argv[2]);
    else {
        fprintf(stderr, "usage: %s [serve URI | send URI]\n", argv[0]);
        return 2;
    }
    return 0;
}
