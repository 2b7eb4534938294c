/* base/mpsc.c - the address that stands for a closed list. See mpsc.h. */
#include "base/mpsc.h"

wefti_mpsc_node_t wefti_mpsc_mark;
