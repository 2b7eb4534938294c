/* base/relax.h - what a thread does between two looks while it spins: it leaves the processor's units to the other thread of the
 * core. */
#ifndef WEFTI_RELAX_H
#define WEFTI_RELAX_H

static inline void wefti_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
