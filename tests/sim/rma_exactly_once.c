/* tests/sim/rma_exactly_once.c - random programs with regions and remotes, and everything that can happen to them.
 *
 * They expose memory of the library's and their own, extend, revoke and free it, attach with keys of parts, of few rights, with
 * a time, old ones, and by name, insist on a path or not, read, write, notify, add, batch, flush, fence and drop; and live as
 * tests/sim/lib/life.c says. tests/sim/lib/holdings.c says what an access may come to, words.c whether what was read can be.
 * tests/sim/rma_history.c has fewer kinds of misfortune and more accesses at once. ctest: long */
#include "holdings.h"
#include "seeds.h"

static uint64_t scenario(uint64_t seed)
{
    static const holdings_how_t how = {.regions = 4, .words = 600, .at_once = 3, .upset = 12, .patience = 50, .large = true};
    return holdings_run(seed, &how);
}

int main(int argc, char **argv)
{
    return sim_seeds_main(argc, argv, 5000, scenario);
}
