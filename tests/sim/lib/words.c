/* tests/sim/lib/words.c - see words.h. */
#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seeds.h"

#define NEVER UINT64_MAX
#define WORDS_TORN 400 /* writes of one word that are tried together */

typedef struct access {
    int region, remote;
    uint64_t generation;
    uint32_t first, n;
    uint64_t start, end;   /* end: of a read; of a write, when it has happened for certain, if it succeeded */
    uint64_t bound;        /* nothing of it happens after this */
    uint32_t epoch;        /* fences of its remote before it */
    bool checked, at_once; /* at_once: the owner's look at one moment */
    words_end_t how;
    uint32_t after;  /* a write that is there for certain: notified */
    uint64_t *words; /* of a read */
    uint64_t before; /* of an add */
} access_t;

static model_t *m;
static access_t writes[WORDS_WRITES], reads[WORDS_READS], adds[WORDS_ADDS];
static uint32_t n_writes, n_reads, n_adds;
static uint64_t now;

void words_init(model_t *of)
{
    m = of;
    n_writes = 1; /* 0 is none */
    n_reads = n_adds = 1;
    now = 1;
}

uint64_t words_now(void)
{
    return now++;
}

static void tell(const char *what, uint32_t id, const access_t *a)
{
    static const char *const ends[] = {"begins", "is there", "did nothing", "may have happened"};
    if (sim_tell)
        printf("%llu: %s %u by %d%s, generation %llu, epoch %u, words %u to %u of region %d %s\n", (unsigned long long)now, what,
               id, a->remote,
               a->remote == WORDS_OWNER ? ""
               : a->checked             ? " (checked)"
                                        : " (mapped)",
               (unsigned long long)a->generation, a->epoch, a->first, a->first + a->n, a->region, ends[a->how]);
}

/* The highest byte is a check of the two that number the write: a word that is torn between two writes is never a third one's. */
static uint64_t word_of(uint32_t write, int region, uint32_t at)
{
    uint8_t check = (uint8_t)((write & 255) * 151 + (write >> 8) * 89);
    return (uint64_t)check << 56 | (uint64_t)write << 40 | (uint64_t)(unsigned)region << 32 | at;
}

uint32_t words_write(int region, int remote, uint64_t generation, uint32_t first, uint32_t n, bool checked, uint32_t epoch)
{
    if (n_writes == WORDS_WRITES)
        return 0;
    writes[n_writes] = (access_t){.region = region,
                                  .remote = remote,
                                  .generation = generation,
                                  .first = first,
                                  .n = n,
                                  .start = words_now(),
                                  .end = NEVER,
                                  .bound = NEVER,
                                  .checked = checked,
                                  .epoch = epoch};
    tell("write", n_writes, &writes[n_writes]);
    return n_writes++;
}

void words_fill(uint32_t write, uint64_t *words)
{
    const access_t *w = &writes[write];
    for (uint32_t i = 0; i < w->n; i++)
        words[i] = word_of(write, w->region, w->first + i);
}

void words_written(uint32_t write, words_end_t end)
{
    access_t *w = &writes[write];
    w->how = end;
    if (end == WORDS_OK) {
        w->end = words_now();
        w->bound = w->end < w->bound ? w->end : w->bound;
    }
    tell("write", write, w);
}

uint32_t words_read(int region, int remote, uint32_t first, uint32_t n, bool checked)
{
    if (n_reads == WORDS_READS)
        return 0;
    reads[n_reads] =
        (access_t){.region = region, .remote = remote, .first = first, .n = n, .start = words_now(), .checked = checked};
    tell("read", n_reads, &reads[n_reads]);
    return n_reads++;
}

void words_got(uint32_t read, const uint64_t *words)
{
    access_t *r = &reads[read];
    r->end = words_now();
    r->words = malloc(r->n * sizeof *words + 1);
    memcpy(r->words, words, r->n * sizeof *words);
    r->how = WORDS_OK;
    tell("read", read, r);
}

void words_seen(int region, uint32_t first, uint32_t n, const uint64_t *words)
{
    uint32_t read = words_read(region, WORDS_OWNER, first, n, false);
    if (!read)
        return;
    reads[read].at_once = true;
    words_got(read, words);
}

void words_notified(uint32_t write, const uint64_t *words)
{
    const access_t *w = &writes[write];
    uint32_t read = words_read(w->region, WORDS_OWNER, w->first, w->n, false);
    if (!read)
        return;
    reads[read].at_once = true;
    reads[read].after = write;
    words_got(read, words);
}

uint32_t words_add(int region, int remote, uint64_t generation, uint32_t word, bool checked)
{
    if (n_adds == WORDS_ADDS)
        return 0;
    adds[n_adds] = (access_t){.region = region,
                              .remote = remote,
                              .generation = generation,
                              .first = word,
                              .n = 1,
                              .start = words_now(),
                              .end = NEVER,
                              .bound = NEVER,
                              .checked = checked};
    return n_adds++;
}

void words_added(uint32_t add, words_end_t end, uint64_t before)
{
    adds[add].how = end;
    adds[add].before = before;
    if (end == WORDS_OK)
        adds[add].end = words_now();
}

void words_revoked(int region, uint64_t generation)
{
    uint64_t t = words_now();
    for (uint32_t i = 1; i < n_writes; i++) {
        access_t *w = &writes[i];
        if (w->region == region && w->remote != WORDS_OWNER && w->generation <= generation && w->bound > t)
            w->bound = t;
    }
}

/* --- the checks ----------------------------------------------------------------------------------------------------------- */

/* a has happened before b did. */
static bool before(const access_t *a, const access_t *b)
{
    if (a->bound < b->start)
        return true;
    return a->remote == b->remote && a->remote != WORDS_OWNER && a->how == WORDS_OK && a->start < b->start;
}

/* The write w, which succeeded, was there when r looked. */
static bool there_before(const access_t *w, const access_t *r)
{
    if (w->end < r->start || &writes[r->after] == w)
        return true;
    return w->remote == r->remote && w->remote != WORDS_OWNER && w->start < r->start;
}

static bool is_of(const access_t *w, uint32_t at)
{
    return at >= w->first && at < w->first + w->n;
}

static bool is_large(const access_t *a)
{
    return a->n > WEFT_RMA_WHOLE / 8;
}

/* It may be seen in part: a large write, which goes in pieces that end anywhere and come in any order; or one to mapped memory
 * from a device that failed midway. The owner writes at one moment. */
static bool comes_in_pieces(const access_t *w)
{
    return w->remote != WORDS_OWNER && (is_large(w) || (!w->checked && w->how == WORDS_MAYBE));
}

/* Every byte of v is that of `whole`, or of one of the n words. */
static bool is_mix(uint64_t v, uint64_t whole, const uint64_t *pieces, uint32_t n)
{
    for (unsigned bits = 0; bits < 64; bits += 8) {
        uint64_t byte = UINT64_C(0xff) << bits;
        bool found = !((v ^ whole) & byte);
        for (uint32_t k = 0; k < n && !found; k++)
            found = !((v ^ pieces[k]) & byte);
        if (!found)
            return false;
    }
    return true;
}

/* What a large access moves is moved in pieces that end anywhere: each byte of a word may be another large write's. But what is
 * looked at in one moment has bytes of at most one whole write, or of what was there first: a whole one leaves nothing of those
 * before it. */
static bool is_torn(const access_t *r, uint32_t i)
{
    uint64_t whole[WORDS_TORN] = {0}, pieces[WORDS_TORN] = {0}, v = r->words[i];
    uint32_t n_whole = 1, n_pieces = 0, at = r->first + i;
    bool in_pieces = is_large(r) && !r->at_once;
    for (uint32_t k = 1; k < n_writes && n_whole < WORDS_TORN && n_pieces < WORDS_TORN; k++) {
        const access_t *w = &writes[k];
        if (w->region != r->region || !is_of(w, at) || w->how == WORDS_NOTHING || w->start > r->end)
            continue;
        if (in_pieces || comes_in_pieces(w))
            pieces[n_pieces++] = word_of(k, r->region, at);
        else
            whole[n_whole++] = word_of(k, r->region, at);
    }
    for (uint32_t k = 0; k < n_whole; k++)
        if (is_mix(v, whole[k], pieces, n_pieces))
            return true;
    return false;
}

static const access_t torn; /* the writer of what is of two */

static const access_t *writer(const access_t *r, uint32_t i)
{
    uint64_t v = r->words[i];
    uint32_t id = (uint32_t)(v >> 40 & 0xffff), at = r->first + i;
    const access_t *w = &writes[id < n_writes ? id : 0];
    if (!v)
        return NULL;
    bool known = id && id < n_writes && v == word_of(id, r->region, at) && w->region == r->region && is_of(w, at);
    if ((!known || w->how == WORDS_NOTHING || w->start > r->end) && is_torn(r, i))
        return &torn;
    if (!known)
        sim_bad(&m->net, "word %u of region %d, read by %d, is %016llx: nobody wrote that there", at, r->region, r->remote,
                (unsigned long long)v);
    if (w->how == WORDS_NOTHING)
        sim_bad(&m->net, "word %u of region %d is from write %u, which was refused", at, r->region, id);
    if (w->start > r->end)
        sim_bad(&m->net, "word %u of region %d is from write %u, which had not begun", at, r->region, id);
    return w;
}

static uint32_t seen_epoch[WORDS_REMOTES]; /* of every remote, the last one of which something is seen */

static void look_at_epochs(const access_t *r)
{
    memset(seen_epoch, 0, sizeof seen_epoch);
    for (uint32_t i = 0; r->at_once && i < r->n; i++) {
        const access_t *w = r->first + i < WORDS_ATOMIC ? NULL : writer(r, i);
        if (w && w != &torn && w->remote != WORDS_OWNER && w->epoch > seen_epoch[w->remote])
            seen_epoch[w->remote] = w->epoch;
    }
}

static void check_run(const access_t *r, uint32_t from, uint32_t to, const access_t *w)
{
    for (uint32_t k = 1; k < n_writes; k++) {
        const access_t *o = &writes[k];
        if (o->region != r->region || o->how != WORDS_OK || o == w || !o->n || r->first + to <= o->first ||
            o->first + o->n <= r->first + from)
            continue;
        bool there = there_before(o, r);
        if (!there && r->at_once && o->remote != WORDS_OWNER)
            there = seen_epoch[o->remote] > o->epoch;
        if (there && (!w || before(w, o)))
            sim_bad(&m->net,
                    "words %u to %u of region %d, read by %d from %llu to %llu, are from write %u (by %d, %llu to %llu); write "
                    "%u (by %d, %llu "
                    "to %llu) came after it and before the read",
                    r->first + from, r->first + to, r->region, r->remote, (unsigned long long)r->start,
                    (unsigned long long)r->end, (unsigned)(w ? w - writes : 0), w ? w->remote : 0,
                    (unsigned long long)(w ? w->start : 0), (unsigned long long)(w ? w->bound : 0), k, o->remote,
                    (unsigned long long)o->start, (unsigned long long)o->end);
    }
}

/* What a read sees from a word on. */
typedef struct run {
    const access_t *w; /* NULL: nobody's */
    uint32_t from, to;
} run_t;

/* Small and checked. */
static bool whole(const access_t *a)
{
    return a->checked && !is_large(a);
}

/* Runs a and b of one moment: w of a covers both places. */
static void check_pair(const access_t *r, const run_t *a, const run_t *b)
{
    const access_t *w = a->w, *u = b->w;
    if (!w || w == u || !whole(w) || !(r->at_once || whole(r)) || b->to <= w->first || w->first + w->n <= b->from)
        return;
    if (!u || before(u, w))
        sim_bad(&m->net, "write %u of region %d is seen at word %u and not at %u, by %d", (unsigned)(w - writes), r->region,
                a->from, b->from > w->first ? b->from : w->first, r->remote);
    /* each covers a word that is the other's: one of them was last */
    if (whole(u) && a->to > u->first && a->from < u->first + u->n)
        sim_bad(&m->net,
                "a read by %d of region %d sees words from %u of write %u and from %u of write %u, which both wrote both",
                r->remote, r->region, a->from, (unsigned)(w - writes), b->from, (unsigned)(u - writes));
}

static void check_read(const access_t *r)
{
    run_t runs[64];
    uint32_t n = 0;
    look_at_epochs(r);
    for (uint32_t i = 0, to; i < r->n; i = to) {
        to = i + 1;
        if (r->first + i < WORDS_ATOMIC)
            continue;
        const access_t *w = writer(r, i);
        while (to < r->n && writer(r, to) == w)
            to++;
        if (w == &torn)
            continue;
        check_run(r, i, to, w);
        if (n < 64)
            runs[n++] = (run_t){w, r->first + i, r->first + to};
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            check_pair(r, &runs[i], &runs[k]);
}

static void check_adds(void)
{
    for (uint32_t i = 1; i < n_adds; i++) {
        const access_t *a = &adds[i];
        uint64_t most = 0;
        if (a->how != WORDS_OK)
            continue;
        for (uint32_t k = 1; k < n_adds; k++) {
            const access_t *b = &adds[k];
            if (b->region != a->region || b->first != a->first)
                continue;
            most += b->how != WORDS_NOTHING && b->start < a->end;
            if (k == i || b->how != WORDS_OK)
                continue;
            if (b->before == a->before)
                sim_bad(&m->net, "two fetch-adds of word %u of region %d got %llu", a->first, a->region,
                        (unsigned long long)a->before);
            bool first = a->end < b->start || (a->remote == b->remote && a->start < b->start);
            if (first && a->before > b->before)
                sim_bad(&m->net, "fetch-adds %u and %u of word %u of region %d happened in the wrong order", i, k, a->first,
                        a->region);
        }
        if (a->before >= most)
            sim_bad(&m->net, "a fetch-add of word %u of region %d got %llu; there were %llu", a->first, a->region,
                    (unsigned long long)a->before, (unsigned long long)most);
    }
    for (uint32_t i = 1; i < n_reads; i++) {
        const access_t *r = &reads[i];
        for (uint32_t k = 0; r->words && k < r->n && r->first + k < WORDS_ATOMIC; k++) {
            uint64_t least = 0, most = 0;
            for (uint32_t x = 1; x < n_adds; x++) {
                const access_t *a = &adds[x];
                if (a->region != r->region || a->first != r->first + k)
                    continue;
                least += a->how == WORDS_OK && there_before(a, r);
                most += a->how != WORDS_NOTHING && a->start < r->end;
            }
            if (r->words[k] < least || r->words[k] > most)
                sim_bad(&m->net, "word %u of region %d is %llu after %llu to %llu fetch-adds", r->first + k, r->region,
                        (unsigned long long)r->words[k], (unsigned long long)least, (unsigned long long)most);
        }
    }
}

void words_check(void)
{
    for (uint32_t i = 1; i < n_reads; i++)
        if (reads[i].words)
            check_read(&reads[i]);
    check_adds();
}

void words_free(void)
{
    for (uint32_t i = 1; i < n_reads; i++) {
        free(reads[i].words);
        reads[i].words = NULL;
    }
    n_reads = 1;
}
