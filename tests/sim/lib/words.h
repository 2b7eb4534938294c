/* tests/sim/lib/words.h - the history of remote memory, word by word: who wrote what when, who read what when, and whether that
 * can be.
 *
 * Every write has a number, and every word it writes says which write and which place of which region it is, so that a word
 * tells where it came from. A time is a count of posts and completions. What is checked, at the end of a run, when it is known
 * how everything ended:
 *
 *   - a word that is read was written there, by a write that had begun and was not refused; or it is zero, and was
 *     never written;
 *   - it was not overwritten before: by a write that came after it for certain and was complete for certain when the read
 *     began. For certain is: complete before the other began, or posted before it on the same remote;
 *   - no write of a generation shows after that generation was revoked for good, unless it was there before;
 *   - two small checked writes are seen by a small checked read in one order, and none of them in part, whatever became of
 *     its poster;
 *   - what the owner sees at one moment holds to the fences: of a remote's writes none without all that were before its last
 *     fence;
 *   - fetch-adds of one on a word: each value once, in the order of time, and the sum is what is there. */
#ifndef SIM_WORDS_H
#define SIM_WORDS_H

#include <weft/rma.h>

#include "model.h"

#define WORDS_ATOMIC 8u /* the first words of a region belong to fetch-add */
#define WORDS_WRITES 1500
#define WORDS_READS 1500
#define WORDS_ADDS 1500
#define WORDS_REMOTES 256
#define WORDS_OWNER (-1) /* remote of what the owner does to its memory itself */

typedef enum words_end { WORDS_OPEN, WORDS_OK, WORDS_NOTHING /* it says it touched nothing */, WORDS_MAYBE } words_end_t;

void words_init(model_t *m);
/* Everyone has spoken. */
void words_check(void);
void words_free(void);

uint64_t words_now(void); /* and it is later afterwards */

/* A write of n words from `first` on by a remote, with its generation; its number, 0: the table is full. fill: the words it
 * writes. */
uint32_t words_write(int region, int remote, uint64_t generation, uint32_t first, uint32_t n, bool checked, uint32_t epoch);
void words_fill(uint32_t write, uint64_t *words);
void words_written(uint32_t write, words_end_t end);
/* A read, before it is posted; and what it got. A read that failed is not recorded. */
uint32_t words_read(int region, int remote, uint32_t first, uint32_t n, bool checked);
void words_got(uint32_t read, const uint64_t *words);
/* The owner looks at its memory, now. */
void words_seen(int region, uint32_t first, uint32_t n, const uint64_t *words);
/* The owner is told that this write is there, now, and looks at its n words. */
void words_notified(uint32_t write, const uint64_t *words);
/* A fetch-add of one. */
uint32_t words_add(int region, int remote, uint64_t generation, uint32_t word, bool checked);
void words_added(uint32_t add, words_end_t end, uint64_t before);
/* Nothing of this generation or an earlier one happens to it any more. */
void words_revoked(int region, uint64_t generation);

#endif
