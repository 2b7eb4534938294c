/* tests/fault/lib/couple.c - see couple.h. */
#include "couple.h"

#include "must.h"
#include "ports.h"

couple_t couple;

void couple_drive(void)
{
    weft_runtime_progress(couple.rt[0]);
    weft_runtime_progress(couple.rt[1]);
}

weft_status_t couple_finish(weft_op_t *op)
{
    for (double end = now() + 20; !weft_op_done(op);) {
        couple_drive();
        if (now() > end)
            must(WEFT_ERR_TIMEOUT, "an operation did not end");
    }
    return op->status;
}

void couple_open(const char *transports)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    opts.transports = transports;
    opts.progress = WEFT_PROGRESS_CALLER;
    for (unsigned i = 0; i < 2; i++)
        must(weft_runtime_open(&opts, &couple.rt[i]), "a runtime");
    must(weft_listen(couple.rt[0], ports_tcp(), NULL, &couple.listener), "listening");
    must(weft_ep_open(couple.rt[1], weft_listener_uri(couple.listener), NULL, &op, &couple.ep), "connecting");
    must(couple_finish(&op), "connecting");
}

void couple_close(void)
{
    must(weft_runtime_close(couple.rt[1]), "closing a runtime");
    must(weft_runtime_close(couple.rt[0]), "closing a runtime");
}

void couple_close_with(weft_client_t *client, weft_service_t *service)
{
    weft_op_t ops[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    must(weft_client_close(client, &ops[0]), "closing a client");
    must(couple_finish(&ops[0]), "closing a client");
    must(weft_service_close(service, &ops[1]), "closing a service");
    must(couple_finish(&ops[1]), "closing a service");
    couple_close();
}
