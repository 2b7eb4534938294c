/* tests/sim/fabric_checks.c - the simulator sees whoever misuses the door: each way of doing so ends in a violation.
 *
 * A check that never fires is no check, so every test here does one thing wrong, in a child that must abort. */
#include <fcntl.h>
#include <sys/mman.h>

#include "test.h"

#include "simnet/simnet.h"

typedef struct side {
    wefti_fabric_t *f;
    wefti_lane_t *lane;
    wefti_pull_t *offered;
    unsigned closed, records, done;
} side_t;

static wefti_sim_t *w;
static side_t a, b;
static uint8_t payload[64], target[64];
static weft_iov_t from_iov = {payload, sizeof payload}, to_iov = {target, sizeof target};

static void up_record(void *user, const void *rec, size_t n)
{
    (void)rec;
    (void)n;
    ((side_t *)user)->records++;
}
static void up_announced(void *user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    (void)rec;
    (void)n;
    (void)total;
    ((side_t *)user)->offered = p;
}
static void up_withdrawn(wefti_pull_t *p)
{
    (void)p;
}
static void up_room(void *user)
{
    (void)user;
}
static void up_failed(void *user, weft_status_t why)
{
    (void)user;
    (void)why;
}
static void up_closed(void *user)
{
    ((side_t *)user)->closed++;
}

static const wefti_fabric_up_t up = {.record = up_record,
                                     .announced = up_announced,
                                     .withdrawn = up_withdrawn,
                                     .space = up_room,
                                     .lane_failed = up_failed,
                                     .lane_closed = up_closed};

static void on_done(wefti_xfer_t *x, weft_status_t status)
{
    (void)x;
    (void)status;
    a.done++;
}
static wefti_xfer_t send_x = {.done = on_done}, pull_x = {.done = on_done};

static void settle(void)
{
    do {
        for (int i = 0; i < 20; i++) {
            a.f->ops->progress(a.f, true);
            b.f->ops->progress(b.f, true);
        }
    } while (wefti_sim_step(w) || wefti_sim_ready(a.f) || wefti_sim_ready(b.f));
}

/* Two hosts with a lane between them. */
static void pair_of(uint64_t seed)
{
    uint8_t addr_a[WEFTI_LANE_ADDR_MAX], addr_b[WEFTI_LANE_ADDR_MAX];
    size_t n_a, n_b;
    CHECK_OK(wefti_sim_new(seed, &w));
    CHECK_OK(wefti_sim_host(w, "a", &a.f));
    CHECK_OK(wefti_sim_host(w, "b", &b.f));
    wefti_sim_faults(w)->style = WEFTI_SIM_SHM;
    a.f->up = b.f->up = &up;
    CHECK_OK(a.f->transports[0]->ops->lane_new(a.f->transports[0], NULL, &a, addr_a, &n_a, &a.lane));
    CHECK_OK(b.f->transports[0]->ops->lane_new(b.f->transports[0], NULL, &b, addr_b, &n_b, &b.lane));
    CHECK_OK(a.lane->ops->lane_connect(a.lane, addr_b, n_b));
    CHECK_OK(b.lane->ops->lane_connect(b.lane, addr_a, n_a));
}

static void pair(void)
{
    pair_of(5);
}

static void offer(void)
{
    pair();
    CHECK_OK(a.lane->ops->announce(a.lane, "rec", 3, &from_iov, 1, sizeof payload, &send_x));
    settle();
    CHECK(b.offered);
}

/* fn must end in a violation. */
static void must_abort(void (*fn)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(3);
        signal(SIGABRT, SIG_DFL);
        fn();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void reserve_after_close(void)
{
    pair();
    a.lane->ops->lane_close(a.lane);
    a.lane->ops->reserve(a.lane, 8);
}
TEST(a_record_on_a_closed_lane_is_seen)
{
    must_abort(reserve_after_close);
}

static void reserve_after_gone(void)
{
    pair();
    a.lane->ops->lane_close(a.lane);
    settle();
    a.lane->ops->reserve(a.lane, 8);
}
TEST(a_record_on_a_lane_that_is_gone_is_seen)
{
    must_abort(reserve_after_gone);
}

static void reserve_twice(void)
{
    pair();
    a.lane->ops->reserve(a.lane, 8);
    a.lane->ops->reserve(a.lane, 8);
}
TEST(a_second_reserve_without_commit_is_seen)
{
    must_abort(reserve_twice);
}

static void write_past_end(void)
{
    pair();
    uint8_t *rec = a.lane->ops->reserve(a.lane, 8);
    rec[8] ^= 1;
    a.lane->ops->commit(a.lane, 8);
}
TEST(a_record_longer_than_reserved_is_seen)
{
    must_abort(write_past_end);
}

static void commit_nothing(void)
{
    pair();
    a.lane->ops->commit(a.lane, 8);
}
TEST(a_commit_without_reserve_is_seen)
{
    must_abort(commit_nothing);
}

static void close_twice(void)
{
    pair();
    a.lane->ops->lane_close(a.lane);
    a.lane->ops->lane_close(a.lane);
}
TEST(a_lane_closed_twice_is_seen)
{
    must_abort(close_twice);
}

static void change_payload(void)
{
    offer();
    payload[7] ^= 1;
    CHECK_OK(b.offered->ops->pull(b.offered, &to_iov, 1, sizeof target, &pull_x));
    settle();
}
TEST(a_payload_changed_while_announced_is_seen)
{
    must_abort(change_payload);
}

static void pull_twice(void)
{
    offer();
    CHECK_OK(b.offered->ops->pull(b.offered, &to_iov, 1, sizeof target, &pull_x));
    b.offered->ops->refuse(b.offered, true);
}
TEST(an_offer_taken_twice_is_seen)
{
    must_abort(pull_twice);
}

static void pull_too_much(void)
{
    offer();
    (void)!b.offered->ops->pull(b.offered, &to_iov, 1, sizeof target + 1, &pull_x);
}
TEST(a_pull_of_more_than_there_is_is_seen)
{
    must_abort(pull_too_much);
}

static void pull_on_closed_lane(void)
{
    offer();
    b.lane->ops->lane_close(b.lane);
    (void)!b.offered->ops->pull(b.offered, &to_iov, 1, sizeof target, &pull_x);
}
TEST(a_pull_on_a_closed_lane_is_seen)
{
    must_abort(pull_on_closed_lane);
}

/* --- lending --------------------------------------------------------------------------------------------------------------- */

static uint64_t share_id;
static const uint8_t *lent_ptr;
static void *lent;

static void offer_shared(void)
{
    pair();
    CHECK_OK(a.f->ops->share(a.f, payload, sizeof payload, -1, &share_id));
    CHECK_OK(a.lane->ops->announce(a.lane, "rec", 3, &from_iov, 1, sizeof payload, &send_x));
    settle();
    CHECK(b.offered);
}

/* Sometimes it says no. */
static void lend(void)
{
    const void *ptr = NULL;
    unsigned refused = 0;
    while (b.offered->ops->lend(b.offered, &ptr, &lent) && ++refused < 100)
        ;
    CHECK(ptr && refused < 100);
    lent_ptr = ptr;
}

static void unlend(void)
{
    b.f->transports[0]->ops->unlend(b.f->transports[0], lent);
}

static void close_all(void)
{
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    settle();
    a.f->ops->close(a.f);
    b.f->ops->close(b.f);
    wefti_sim_free(w);
}

static void change_lent(void)
{
    offer_shared();
    lend();
    payload[7] ^= 1;
    b.offered->ops->refuse(b.offered, true);
}
static void change_lent_before_unlend(void)
{
    offer_shared();
    lend();
    payload[7] ^= 1;
    unlend();
}
TEST(a_payload_changed_while_lent_is_seen)
{
    must_abort(change_lent);
    must_abort(change_lent_before_unlend);
}

static void write_to_lent(void)
{
    offer_shared();
    lend();
    ((uint8_t *)(uintptr_t)lent_ptr)[5] ^= 1;
    unlend();
}
TEST(a_borrower_that_writes_is_seen)
{
    must_abort(write_to_lent);
}

static void unlend_twice(void)
{
    offer_shared();
    lend();
    unlend();
    unlend();
}
TEST(a_loan_given_back_twice_is_seen)
{
    must_abort(unlend_twice);
}

static void keep_loan(void)
{
    offer_shared();
    lend();
    b.offered->ops->refuse(b.offered, true);
    settle();
    a.f->ops->unshare(a.f, share_id);
    close_all();
}
TEST(a_loan_never_given_back_is_seen)
{
    must_abort(keep_loan);
}

static void lend_refused(void)
{
    offer_shared();
    b.offered->ops->refuse(b.offered, true);
    lend();
}
TEST(a_loan_of_what_is_over_is_seen)
{
    must_abort(lend_refused);
}

static void keep_share(void)
{
    offer_shared();
    b.offered->ops->refuse(b.offered, true);
    settle();
    close_all();
}
static void unshare_announced(void)
{
    offer_shared();
    a.f->ops->unshare(a.f, share_id);
}
static void unshare_twice(void)
{
    pair();
    CHECK_OK(a.f->ops->share(a.f, payload, sizeof payload, -1, &share_id));
    a.f->ops->unshare(a.f, share_id);
    a.f->ops->unshare(a.f, share_id);
}
TEST(ranges_unshared_too_early_twice_or_never_are_seen)
{
    must_abort(keep_share);
    must_abort(unshare_announced);
    must_abort(unshare_twice);
}

TEST(proper_lending_is_no_violation)
{
    offer_shared();
    lend();
    CHECK(lent_ptr != payload && !memcmp(lent_ptr, payload, sizeof payload));
    settle();
    CHECK_EQ(a.done, 0);
    b.offered->ops->refuse(b.offered, true);
    settle();
    CHECK_EQ(a.done, 1);
    a.f->ops->unshare(a.f, share_id);
    payload[3] ^= 1; /* its own again */
    unlend();
    /* What is not shared, or in several pieces, is never lent. */
    weft_iov_t two[2] = {{payload, 32}, {payload + 32, 32}};
    for (int i = 0; i < 2; i++) {
        const void *ptr;
        b.offered = NULL;
        if (i)
            CHECK_OK(a.f->ops->share(a.f, payload, sizeof payload, -1, &share_id));
        CHECK_OK(a.lane->ops->announce(a.lane, "rec", 3, i ? two : &from_iov, i ? 2 : 1, sizeof payload, &send_x));
        settle();
        CHECK(b.offered);
        for (int k = 0; k < 50; k++)
            CHECK_EQ(b.offered->ops->lend(b.offered, &ptr, &lent), WEFT_ERR_UNSUPPORTED);
        b.offered->ops->refuse(b.offered, true);
        settle();
    }
    a.f->ops->unshare(a.f, share_id);
    close_all();
}

TEST(what_is_lent_outlives_lane_and_sender)
{
    offer_shared();
    lend();
    wefti_sim_kill(a.f);
    settle();
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    settle();
    a.f->ops->unshare(a.f, share_id);
    a.f->ops->close(a.f);
    memset(payload, 0x77, sizeof payload);
    CHECK_EQ(lent_ptr[0] | lent_ptr[sizeof payload - 1], 0);
    unlend();
    b.f->ops->close(b.f);
    wefti_sim_free(w);
}

/* --- memory that is mapped ------------------------------------------------------------------------------------------------- */

#define MAPPED ((size_t)10000)

static int memory = -1;
static uint8_t *own; /* the owner's view of it */
static uint8_t map_handle[WEFTI_MAP_HANDLE_MAX];
static size_t map_handle_n;

static void expose(void)
{
    pair();
    wefti_sim_shares_memory(a.f, b.f, true);
    memory = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memory >= 0 && !ftruncate(memory, (off_t)MAPPED) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
    own = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(own != MAP_FAILED);
    map_handle_n = a.lane->ops->expose(a.lane, memory, MAPPED, map_handle);
    CHECK(map_handle_n && map_handle_n <= WEFTI_MAP_HANDLE_MAX);
}

static weft_status_t map_as(side_t *s, size_t n, uint8_t **at_out)
{
    void *at = NULL;
    weft_status_t st = s->lane->ops->map(s->lane, map_handle, map_handle_n, n, &at);
    CHECK(!st == (at != NULL));
    *at_out = at;
    return st;
}

static uint8_t *map(void)
{
    uint8_t *at;
    CHECK_OK(map_as(&b, MAPPED, &at));
    return at;
}

static unsigned mapped(const side_t *s)
{
    wefti_sim_counts_t c;
    wefti_sim_count(s->f, &c);
    return c.mapped;
}

static void forget_memory(void)
{
    munmap(own, MAPPED);
    close(memory);
}

TEST(two_hosts_see_one_memory_which_outlives_lane_and_owner)
{
    uint8_t *at, *again;
    expose();
    at = map();
    again = map();
    CHECK_EQ(mapped(&b), 2);
    CHECK(at != own && again != at);
    own[0] = 1;
    at[MAPPED - 1] = 2;
    CHECK_EQ(at[0] + again[0], 2);
    CHECK_EQ(own[MAPPED - 1] + again[MAPPED - 1], 4);
    b.lane->ops->unmap(again, MAPPED);
    CHECK_EQ(mapped(&b), 1);
    wefti_sim_kill(a.f);
    settle();
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    settle();
    forget_memory();
    a.f->ops->close(a.f);
    CHECK_EQ(at[0] + at[MAPPED - 1], 3);
    b.f->transports[0]->ops->unmap(at, MAPPED);
    b.f->ops->close(b.f);
    wefti_sim_free(w);
}

TEST(a_map_handle_that_is_good_for_nothing_maps_nothing)
{
    uint8_t *at, same[WEFTI_MAP_HANDLE_MAX];
    expose();
    memcpy(same, map_handle, sizeof same);
    CHECK_EQ(map_as(&b, MAPPED - 1, &at), WEFT_ERR_PROTOCOL);
    CHECK_EQ(map_as(&b, MAPPED + 1, &at), WEFT_ERR_PROTOCOL);
    CHECK_EQ(map_as(&a, MAPPED, &at), WEFT_ERR_UNREACHABLE); /* it is not the peer's */
    for (size_t bit = 0; bit < 8 * map_handle_n; bit++) {
        map_handle[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        CHECK(map_as(&b, MAPPED, &at));
        memcpy(map_handle, same, sizeof same);
    }
    map_handle_n--;
    CHECK_EQ(map_as(&b, MAPPED, &at), WEFT_ERR_PROTOCOL);
    map_handle_n++;
    /* The owner closes it while the map_handle is on its way, and the number is used again. */
    int other = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(other >= 0 && !ftruncate(other, (off_t)MAPPED) && !fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK));
    int kept = dup(memory);
    CHECK(dup2(other, memory) == memory);
    CHECK_EQ(map_as(&b, MAPPED, &at), WEFT_ERR_UNREACHABLE);
    close(memory);
    CHECK_EQ(map_as(&b, MAPPED, &at), WEFT_ERR_UNREACHABLE);
    CHECK(dup2(kept, memory) == memory);
    CHECK_OK(map_as(&b, MAPPED, &at));
    b.lane->ops->unmap(at, MAPPED);
    wefti_sim_shares_memory(b.f, a.f, false);
    CHECK_EQ(map_as(&b, MAPPED, &at), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(a.lane->ops->expose(a.lane, memory, MAPPED, same), 0);
    wefti_sim_shares_memory(b.f, a.f, true);
    wefti_sim_kill(a.f);
    CHECK_EQ(map_as(&b, MAPPED, &at), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(mapped(&b), 0);
    close_all();
    forget_memory();
}

TEST(a_mapping_fails_when_told_to_and_by_chance)
{
    uint8_t *at;
    unsigned seen[3] = {0, 0, 0};
    expose();
    wefti_sim_fail_next(b.f, WEFTI_SIM_AT_MAP, WEFT_ERR_LIMIT, 1);
    CHECK_EQ(map_as(&b, MAPPED, &at), WEFT_ERR_LIMIT);
    b.lane->ops->unmap(map(), MAPPED);
    wefti_sim_faults(w)->map_fails = 1000000;
    for (int i = 0; i < 200; i++) {
        weft_status_t st = map_as(&b, MAPPED, &at);
        CHECK(st == WEFT_ERR_NOMEM || st == WEFT_ERR_LIMIT || st == WEFT_ERR_UNREACHABLE);
        seen[st == WEFT_ERR_NOMEM ? 0 : st == WEFT_ERR_LIMIT ? 1 : 2]++;
    }
    CHECK(seen[0] && seen[1] && seen[2]);
    CHECK_EQ(mapped(&b), 0);
    close_all();
    forget_memory();
}

/* Half of the pairs, about, and the same half every time. */
TEST(the_seed_says_who_shares_memory)
{
    unsigned shares = 0;
    for (uint64_t seed = 1; seed <= 64; seed++) {
        bool was = false;
        for (int again = 0; again < 2; again++) {
            pair_of(seed);
            int fd = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            CHECK(fd >= 0 && !ftruncate(fd, 1) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
            bool one = a.lane->ops->expose(a.lane, fd, 1, map_handle), other = b.lane->ops->expose(b.lane, fd, 1, map_handle);
            close(fd);
            CHECK_EQ(one, other);
            CHECK(!again || one == was);
            was = one;
            close_all();
        }
        shares += was;
    }
    CHECK(shares > 16 && shares < 48);
}

static void unmap_twice(void)
{
    expose();
    uint8_t *at = map();
    b.lane->ops->unmap(at, MAPPED);
    b.lane->ops->unmap(at, MAPPED);
}
static void unmap_a_part(void)
{
    expose();
    b.lane->ops->unmap(map(), MAPPED - 1);
}
static void keep_mapping(void)
{
    expose();
    map();
    close_all();
}
static void map_on_closed_lane(void)
{
    uint8_t *at;
    expose();
    b.lane->ops->lane_close(b.lane);
    (void)!map_as(&b, MAPPED, &at);
}
static void expose_too_much(void)
{
    expose();
    a.lane->ops->expose(a.lane, memory, MAPPED + 1, map_handle);
}
static void expose_what_shrinks(void)
{
    expose();
    a.lane->ops->expose(a.lane, memfd_create("weft-test", MFD_CLOEXEC), 1, map_handle);
}
static void expose_what_is_closed(void)
{
    expose();
    close(memory);
    a.lane->ops->expose(a.lane, memory, MAPPED, map_handle);
}
TEST(mappings_undone_twice_in_part_or_never_are_seen)
{
    must_abort(unmap_twice);
    must_abort(unmap_a_part);
    must_abort(keep_mapping);
    must_abort(map_on_closed_lane);
}
TEST(exposing_what_is_no_sealed_memory_is_seen)
{
    must_abort(expose_too_much);
    must_abort(expose_what_shrinks);
    must_abort(expose_what_is_closed);
}

/* What was there when it was unmapped is not what a pointer that was kept finds. */
TEST(a_mapping_that_was_undone_cannot_be_touched)
{
    expose();
    uint8_t *at = map();
    b.lane->ops->unmap(at, MAPPED);
    for (int i = 0; i < 8; i++)
        map();
    CHECK_EQ(msync(at, 1, MS_ASYNC), 0); /* the addresses are taken, */
    int ends[2];
    CHECK(!pipe(ends));
    CHECK(write(ends[1], at, 1) < 0 && errno == EFAULT); /* and nothing is there */
}

static void leave_lane_open(void)
{
    pair();
    a.f->ops->close(a.f);
}
TEST(a_lane_left_open_is_seen)
{
    must_abort(leave_lane_open);
}

static void leave_fabric_open(void)
{
    pair();
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    settle();
    a.f->ops->close(a.f);
    wefti_sim_free(w);
}
TEST(a_fabric_left_open_is_seen)
{
    must_abort(leave_fabric_open);
}

static void unregister_twice(void)
{
    void *reg;
    pair();
    CHECK_OK(a.f->ops->mem_register(a.f, payload, sizeof payload, &reg));
    a.f->ops->mem_unregister(a.f, reg);
    a.f->ops->mem_unregister(a.f, reg);
}
static void unregister_elsewhere(void)
{
    void *reg;
    pair();
    CHECK_OK(a.f->ops->mem_register(a.f, payload, sizeof payload, &reg));
    b.f->ops->mem_unregister(b.f, reg);
}
static void leave_range_registered(void)
{
    void *reg;
    pair();
    CHECK_OK(a.f->ops->mem_register(a.f, payload, sizeof payload, &reg));
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    settle();
    a.f->ops->close(a.f);
}
TEST(a_range_not_unregistered_once_and_where_it_was_registered_is_seen)
{
    must_abort(unregister_twice);
    must_abort(unregister_elsewhere);
    must_abort(leave_range_registered);
}

TEST(a_registration_fails_when_told_to)
{
    void *reg = NULL;
    wefti_sim_counts_t c;
    pair();
    wefti_sim_fail_next(a.f, WEFTI_SIM_AT_MEM_REGISTER, WEFT_ERR_NOMEM, 1);
    CHECK_EQ(a.f->ops->mem_register(a.f, payload, sizeof payload, &reg), WEFT_ERR_NOMEM);
    CHECK(!reg);
    CHECK_OK(a.f->ops->mem_register(a.f, payload, sizeof payload, &reg));
    wefti_sim_count(a.f, &c);
    CHECK_EQ(c.registered, 1);
    a.f->ops->mem_unregister(a.f, reg);
    wefti_sim_count(a.f, &c);
    CHECK_EQ(c.registered, 0);
}

TEST(proper_use_is_no_violation)
{
    offer();
    CHECK_OK(b.offered->ops->pull(b.offered, &to_iov, 1, sizeof target, &pull_x));
    settle();
    CHECK_EQ(a.done, 2);
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    settle();
    CHECK_EQ(a.closed, 1);
    CHECK_EQ(b.closed, 1);
    a.f->ops->close(a.f);
    b.f->ops->close(b.f);
    wefti_sim_free(w);
}

TEST(a_killed_host_lets_go_of_what_is_closed_on_it)
{
    offer();
    wefti_sim_kill(a.f);
    settle();
    CHECK_EQ(a.done, 0);
    CHECK_OK(b.offered->ops->pull(b.offered, &to_iov, 1, sizeof target, &pull_x));
    settle();
    CHECK_EQ(a.done, 1); /* the pull, with WEFT_ERR_PEER */
    a.lane->ops->lane_close(a.lane);
    b.lane->ops->lane_close(b.lane);
    settle();
    CHECK_EQ(a.done, 2);
    a.f->ops->close(a.f);
    b.f->ops->close(b.f);
    wefti_sim_free(w);
}
