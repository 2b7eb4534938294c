/* tests/sim/rma_history.c - many accesses under way at once on few words, and the history of every word.
 *
 * One region on each host, a few hundred words, accesses that overlap on several remotes of several hosts on both paths, posted
 * up to sixteen at a time, with fences, and now and then a region is revoked under them. tests/sim/lib/words.h says what is
 * checked. ctest: long */
#include "holdings.h"
#include "seeds.h"

static uint64_t scenario(uint64_t seed)
{
    static const holdings_how_t how = {.regions = 1, .words = 40, .at_once = 16, .upset = 4, .patience = 10};
    static const holdings_how_t wider = {.regions = 1, .words = 1500, .at_once = 16, .upset = 4, .patience = 10};
    return holdings_run(seed, seed % 3 ? &how : &wider);
}

int main(int argc, char **argv)
{
    static const uint64_t failed[] = {
        20141766, /* the owner looks between two chunks of a write that come in the other order, and one of them in part */
    };
    sim_seeds_once_failed(failed, sizeof failed / sizeof *failed);
    return sim_seeds_main(argc, argv, 4000, scenario);
}
