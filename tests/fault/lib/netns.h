/* tests/fault/lib/netns.h - two hosts on one machine: network namespaces with a veth pair between them, which can be cut. Needs
 * root and ip(8). */
#ifndef WEFT_TEST_NETNS_H
#define WEFT_TEST_NETNS_H

#include <stdbool.h>

/* Make both; they go when this process exits. NULL, or why that cannot be done here. Host 0 is 10.99.0.1, host 1 is 10.99.0.2. */
const char *netns_make(void);
/* Have this process (a child of the one that made them) live on host i. */
void netns_enter(int i);
/* Take the link down silently, or up again. */
void netns_link(bool up);
/* A second link between them, eth1 on both: 10.98.0.1 and 10.98.0.2. NULL, or why that cannot be done here. */
const char *netns_second(void);
void netns_second_link(bool up);

#endif
