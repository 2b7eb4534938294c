/* tests/unit/rma_share.c - the memory of a region that peers map: its slots, the meeting of stamp and busy, and memory that is
 * left to who has it. ctest: label=thread timeout=180 */
#include "owner.h" /* its F_NOTIFY would not survive fcntl.h's before it */
#include "test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN ((size_t)100000)
#define PIECE 20000u

/* What a peer has. */
static rma_control_t *map(const rma_share_t *s)
{
    void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static uint8_t *data_of(rma_control_t *c)
{
    return (uint8_t *)c + RMA_CONTROL;
}

TEST(a_control_page_and_zeroed_bytes_behind_it_sealed)
{
    rma_share_t s;
    struct stat st;
    CHECK_OK(wefti_rma_share_new(&s, LEN));
    CHECK_EQ(s.control->magic, RMA_MAGIC);
    CHECK(s.data == (uint8_t *)s.control + RMA_CONTROL && s.bytes >= RMA_CONTROL + LEN);
    for (size_t i = 0; i < LEN; i++)
        CHECK_EQ(s.data[i], 0);
    int seals = fcntl(s.fd, F_GET_SEALS), want = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    CHECK_EQ(seals & want, want);
    CHECK(ftruncate(s.fd, 0) < 0 && ftruncate(s.fd, 1 << 30) < 0);
    CHECK(!fstat(s.fd, &st) && (size_t)st.st_size == s.bytes);
    CHECK(fcntl(s.fd, F_GETFD) & FD_CLOEXEC);
    rma_control_t *peer = map(&s);
    data_of(peer)[LEN - 1] = 7;
    CHECK_EQ(s.data[LEN - 1], 7);
    wefti_rma_share_free(&s);
    CHECK(s.fd == -1 && !s.control);
    CHECK_EQ(data_of(peer)[LEN - 1], 7); /* the peer's to keep */
    wefti_rma_share_free(&s);
}

TEST(slots_are_taken_given_and_used_up)
{
    rma_share_t s;
    bool seen[RMA_SLOTS] = {false};
    CHECK_OK(wefti_rma_share_new(&s, 1));
    for (uint64_t i = 0; i < RMA_SLOTS; i++) {
        int32_t slot = wefti_rma_slot_take(&s, 1000 + i);
        CHECK(slot >= 0 && slot < (int32_t)RMA_SLOTS && !seen[slot]);
        seen[slot] = true;
        CHECK_EQ(atomic_load(&s.control->slots[slot].stamp), 1000 + i);
        CHECK(!wefti_rma_slot_busy(&s, slot));
    }
    CHECK_EQ(wefti_rma_slot_take(&s, 1), -1);
    wefti_rma_slot_give(&s, 17);
    CHECK_EQ(atomic_load(&s.control->slots[17].stamp), 0);
    atomic_store(&s.control->slots[17].busy, 1); /* by whoever had it: nobody else shall wait for that */
    CHECK_EQ(wefti_rma_slot_take(&s, 1), -1);
    wefti_rma_slot_give(&s, 3);
    CHECK_EQ(wefti_rma_slot_take(&s, 2), 3);
    atomic_store(&s.control->slots[17].busy, 0);
    CHECK_EQ(wefti_rma_slot_take(&s, 4), 17);
    wefti_rma_slot_stale(&s, 3);
    CHECK_EQ(atomic_load(&s.control->slots[3].stamp), 0);
    CHECK_EQ(wefti_rma_slot_take(&s, 5), -1); /* stale is not free */
    wefti_rma_share_free(&s);
}

/* All of it, in pieces. */
static weft_status_t replace(rma_share_t *s, uint64_t len)
{
    weft_status_t st;
    while ((st = wefti_rma_share_replace(s, len, PIECE)) == WEFT_ERR_AGAIN)
        CHECK(wefti_rma_share_replacing(s));
    return st;
}

TEST(what_is_replaced_is_left_to_who_has_it)
{
    rma_share_t s;
    CHECK_OK(wefti_rma_share_new(&s, LEN));
    uint8_t *at = s.data;
    rma_control_t *control = s.control, *peer = map(&s);
    for (size_t i = 0; i < LEN; i++)
        s.data[i] = (uint8_t)(i * 7);
    for (uint64_t i = 0; i < 5; i++)
        CHECK_EQ(wefti_rma_slot_take(&s, 1 + i), i);
    atomic_store(&peer->slots[2].busy, 1);
    int was = s.fd;
    CHECK_OK(replace(&s, LEN - 100));
    CHECK(s.data == at && s.control == control && s.control->magic == RMA_MAGIC);
    CHECK(s.fd == was || fcntl(was, F_GETFD) < 0); /* the old descriptor is closed */
    for (size_t i = 0; i < LEN; i++)
        CHECK_EQ(s.data[i], i < LEN - 100 ? (uint8_t)(i * 7) : 0);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(atomic_load(&peer->slots[i].stamp), 0);
        CHECK_EQ(wefti_rma_slot_take(&s, 9), i); /* all are free, and nobody is busy there */
    }
    memset(data_of(peer), 0xee, LEN);
    atomic_store(&peer->slots[4].busy, 1);
    CHECK_EQ(s.data[5], 35);
    CHECK(!wefti_rma_slot_busy(&s, 4));
    s.data[0] = 1;
    CHECK_EQ(data_of(peer)[0], 0xee);
    rma_control_t *now = map(&s);
    CHECK_EQ(data_of(now)[5], 35);
    CHECK(!munmap(peer, s.bytes));
    wefti_rma_share_free(&s);
}

TEST(what_is_replaced_in_part_is_one_memory_to_its_owner_and_stays_so_without_memory)
{
    rma_share_t s;
    CHECK_OK(wefti_rma_share_new(&s, LEN));
    for (size_t i = 0; i < LEN; i++)
        s.data[i] = (uint8_t)(i * 7);
    rma_control_t *peer = map(&s);
    int was = s.fd, rounds = 1;
    CHECK_EQ(wefti_rma_share_replace(&s, LEN, PIECE), WEFT_ERR_AGAIN);
    CHECK(s.fd == was && s.mem.moved > RMA_CONTROL && s.mem.moved <= RMA_CONTROL + PIECE + 4096);
    memset(data_of(peer), 0xee, 100); /* moved: not ours any more */
    data_of(peer)[LEN - 1] = 0xdd;    /* not yet: it is */
    s.data[1] = 1;                    /* between two pieces nothing of ours is lost, on either side */
    s.data[LEN - 2] = 2;
    CHECK_EQ(s.data[0], 0);
    pid_t pid = fork(); /* a child has all of it too, and for itself */
    CHECK(pid >= 0);
    if (!pid) {
        bool same = s.data[1] == 1 && s.data[5] == 35 && s.data[LEN - 2] == 2;
        s.data[1] = s.data[LEN - 2] = 99;
        _exit(!same);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(s.data[1] == 1 && s.data[LEN - 2] == 2);
    for (weft_status_t st = WEFT_ERR_AGAIN; st; rounds++) {
        CHECK_EQ(st, WEFT_ERR_AGAIN);
        st = wefti_rma_share_replace(&s, LEN, PIECE);
    }
    CHECK(rounds >= (int)(LEN / PIECE) && s.control->magic == RMA_MAGIC);
    for (size_t i = 0; i < LEN; i++)
        CHECK_EQ(s.data[i], i == 1 ? 1 : i == LEN - 2 ? 2 : i == LEN - 1 ? 0xdd : (uint8_t)(i * 7));
    /* freed, and kept, in the middle */
    CHECK_EQ(wefti_rma_share_replace(&s, LEN, PIECE), WEFT_ERR_AGAIN);
    wefti_memfd_keep(&s.mem);
    CHECK(s.data[0] == 0 && s.data[1] == 1 && s.data[5] == 35 && s.data[LEN - 2] == 2);
    CHECK(!munmap(s.mem.base, s.mem.n));
    CHECK_OK(wefti_rma_share_new(&s, LEN));
    memset(s.data, 1, LEN);
    CHECK_EQ(wefti_rma_share_replace(&s, LEN, PIECE), WEFT_ERR_AGAIN);
    wefti_rma_share_free(&s);
}

TEST(memory_is_given_back_piece_by_piece)
{
    rma_share_t s;
    struct stat st;
    size_t at = 0;
    int rounds = 1;
    CHECK_OK(wefti_rma_share_new(&s, UINT64_C(64) << 30)); /* of which little is there: holes take no time */
    memset(s.data, 1, 1 << 20);
    for (blkcnt_t before = 1 << 20; wefti_memfd_empty(&s.mem, &at, 1 << 18); rounds++) {
        CHECK(!fstat(s.fd, &st) && st.st_blocks < before);
        before = st.st_blocks ? st.st_blocks : 1;
    }
    CHECK(rounds > 3 && rounds < 9);
    CHECK(!fstat(s.fd, &st) && st.st_blocks == 0);
    wefti_rma_share_free(&s);
}

TEST(length_costs_nothing_until_it_is_touched_and_a_replacement_keeps_the_holes)
{
    uint64_t len = UINT64_C(64) << 30;
    rma_share_t s;
    struct stat st;
    CHECK_OK(wefti_rma_share_new(&s, len));
    s.data[0] = 1;
    s.data[len / 2] = 2;
    s.data[len - 1] = 3;
    for (int round = 0; round < 3; round++) {
        CHECK(!fstat(s.fd, &st));
        CHECK(st.st_blocks * 512 <= 64 << 20); /* four pages, or four huge ones */
        CHECK(s.data[0] == 1 && s.data[len / 2] == 2 && s.data[len - 1] == 3);
        CHECK_OK(replace(&s, len));
    }
    CHECK_OK(replace(&s, len / 2)); /* what is behind the end is not kept */
    CHECK(s.data[0] == 1 && s.data[len / 2] == 0 && s.data[len - 1] == 0);
    wefti_rma_share_free(&s);
    CHECK_EQ(wefti_rma_share_new(&s, UINT64_MAX), WEFT_ERR_NOMEM);
    CHECK_EQ(wefti_rma_share_new(&s, INT64_MAX), WEFT_ERR_NOMEM);
    CHECK_EQ(s.fd, -1);
}

TEST(no_memory_leaves_it_as_it_was)
{
    rma_share_t s;
    owner_allocs(0);
    CHECK_EQ(wefti_rma_share_new(&s, LEN), WEFT_ERR_NOMEM);
    CHECK_EQ(s.fd, -1);
    wefti_rma_share_free(&s);
    owner_allocs(UINT64_MAX);
    CHECK_OK(wefti_rma_share_new(&s, LEN));
    s.data[9] = 9;
    CHECK_EQ(wefti_rma_slot_take(&s, 1), 0);
    atomic_store(&s.control->slots[0].busy, 1);
    owner_allocs(0);
    CHECK_EQ(replace(&s, LEN), WEFT_ERR_NOMEM);
    owner_allocs(UINT64_MAX);
    CHECK(s.data[9] == 9 && wefti_rma_slot_busy(&s, 0) && s.taken == 1);
    CHECK_OK(replace(&s, LEN));
    CHECK(s.data[9] == 9 && !s.taken);
    wefti_rma_share_free(&s);
}

/* --- with threads --------------------------------------------------------------------------------------------------------- */

static rma_share_t shared;
static _Atomic bool stop;
static _Atomic uint64_t reads;

/* The sanitizer takes the new mapping for a write. */
__attribute__((no_sanitize("thread"))) static void *reader(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        for (size_t i = 0; i < LEN; i += 4096)
            CHECK_EQ(*(volatile uint8_t *)&shared.data[i], (uint8_t)(i / 4096 + 1));
        atomic_fetch_add(&reads, 1);
    }
    return NULL;
}

TEST(who_reads_while_it_is_replaced_sees_nothing_of_it)
{
    pthread_t t;
    CHECK_OK(wefti_rma_share_new(&shared, LEN));
    for (size_t i = 0; i < LEN; i += 4096)
        shared.data[i] = (uint8_t)(i / 4096 + 1);
    CHECK(!pthread_create(&t, NULL, reader, NULL));
    double end = test_now() + 20;
    for (int i = 0; (i < 300 || atomic_load(&reads) < 300) && test_now() < end; i++)
        CHECK_OK(replace(&shared, LEN));
    atomic_store(&stop, true);
    CHECK(!pthread_join(t, NULL));
    CHECK(atomic_load(&reads) > 0);
    wefti_rma_share_free(&shared);
}

static _Atomic uint64_t stamp_now, entered, inside;
static uint64_t
    guarded; /* plain: whoever touches it while the other may is a race that the sanitizer sees, and so do the counts */

/* What a mapped access does. */
static void *accessor(void *arg)
{
    rma_slot_t *slot = arg;
    while (!atomic_load(&stop)) {
        if (atomic_exchange(&slot->busy, 1))
            continue;
        uint64_t mine = atomic_load(&stamp_now);
        if (mine && atomic_load(&slot->stamp) == mine) {
            atomic_store_explicit(&inside, 1, memory_order_relaxed);
            guarded++;
            for (int i = 0; i < 30; i++)
                __asm__ volatile("" ::: "memory");
            atomic_store_explicit(&inside, 0, memory_order_relaxed);
            atomic_fetch_add_explicit(&entered, 1, memory_order_relaxed);
        }
        atomic_store_explicit(&slot->busy, 0, memory_order_release);
    }
    return NULL;
}

TEST(after_stale_and_not_busy_nobody_is_inside)
{
    pthread_t t;
    double end = test_now() + 20;
    uint64_t rounds = 0, looks = 0;
    CHECK_OK(wefti_rma_share_new(&shared, 1));
    int32_t slot = wefti_rma_slot_take(&shared, 1);
    atomic_store(&stamp_now, 1);
    /* over the same mapping: a sanitizer does not know that two are one memory */
    CHECK(!pthread_create(&t, NULL, accessor, &shared.control->slots[slot]));
    while (rounds < 20000 && test_now() < end) {
        uint64_t before = atomic_load(&entered);
        for (int i = 0; i < 1000 && atomic_load(&entered) == before; i++)
            ;
        wefti_rma_slot_stale(&shared, slot);
        while (wefti_rma_slot_busy(&shared, slot)) {
            looks++;
            CHECK(test_now() < end + 10);
        }
        for (int i = 0; i < 30; i++)
            CHECK(!atomic_load_explicit(&inside, memory_order_relaxed));
        CHECK_EQ(guarded, atomic_load(&entered));
        guarded++; /* ours alone now */
        atomic_fetch_add(&entered, 1);
        rounds++;
        /* a new stamp, as for another grant; the accessor learns of it first, so that it is never good by accident */
        atomic_store(&stamp_now, rounds + 1);
        atomic_store(&shared.control->slots[slot].stamp, rounds + 1);
    }
    atomic_store(&stop, true);
    CHECK(!pthread_join(t, NULL));
    CHECK(rounds > 100 && guarded == atomic_load(&entered));
    printf("# %" PRIu64 " rounds, %" PRIu64 " looks, %" PRIu64 " accesses\n", rounds, looks, atomic_load(&entered) - rounds);
    wefti_rma_share_free(&shared);
}
