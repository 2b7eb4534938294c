/* tests/sim/lib/seeds.h - run a scenario for many seeds: the command line and the report of every program here.
 *
 *     program [--seeds N] [--first S] [--seed S] [--shards N] [--tell]
 *
 * --seeds N runs N seeds from --first (1) on, after those that once failed; --seed S replays one and prints the hash of its
 * run. --shards N: runtimes have up to N shards, each driven step by step in the order that the seed decides; a seed means
 * something else then. Some seeds are run twice, and the hashes of both runs must agree. Memory that a seed leaves behind is a
 * failure too (where no sanitizer watches: it does that then). A failing seed prints "seed S failed: ...; replay: program
 * --seed S" and ends the program with 1. */
#ifndef SIM_SEEDS_H
#define SIM_SEEDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One run. Returns the hash of what happened. */
typedef uint64_t (*sim_scenario_fn)(uint64_t seed);

/* Before sim_seeds_main(): seeds that once failed, which every run begins with, but --seed. They show what they did only for as
 * long as the scenario draws the same numbers: what can be shown without them has a test of its own as well. */
void sim_seeds_once_failed(const uint64_t *seeds, size_t n);

int sim_seeds_main(int argc, char **argv, unsigned seeds, sim_scenario_fn scenario);

/* The seed under way fails. For scenarios that have no world at hand, and as the hook of wefti_sim_on_violation(). */
void sim_seed_failed(uint64_t seed, const char *what) __attribute__((noreturn));

/* --shards; 1: it was not given. */
extern unsigned sim_shards;
/* --tell was given: scenarios may say what they do. */
extern bool sim_tell;

#endif
