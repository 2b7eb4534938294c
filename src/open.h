/* open.h - putting a runtime together. For src/open.c and for tests that bring their own fabric. */
#ifndef WEFTI_OPEN_H
#define WEFTI_OPEN_H

#include "core/core.h"

/* Open a runtime with all rooms on a given fabric. `config` and `fabric` are taken over, also on error. */
weft_status_t wefti_open_on_fabric(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                   weft_runtime_t **rt_out);
/* The same for shard k > 0 of a runtime; after the last, wefti_shards_opened(). */
weft_status_t wefti_open_shard_on_fabric(const weft_runtime_opts_t *opts, wefti_config_t *config, wefti_fabric_t *fabric,
                                         weft_runtime_t *head, uint32_t k);

#endif
