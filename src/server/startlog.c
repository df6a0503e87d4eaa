/* startlog.c - log lines about the server and its models. Text that finds no memory is left out. */
#include "server/startlog.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "pool/pool.h"
#include "server/auth.h"
#include "server/server_impl.h"

enum { PROGRESS_MS = 3000 }; /* between two lines about a load */

static double mib(uint64_t bytes) { return (double)bytes / (1024.0 * 1024.0); }

/* As URLs that can be copied into a browser. */
static void write_addresses(const struct server *v, struct buf *b)
{
    const struct settings *s = v->s;
    bool v6 = strchr(s->host, ':') && s->host[0] != '[';

    if (http_port(v->http))
        buf_printf(b, "http%s://%s%s%s:%d/", *s->tls_cert ? "s" : "", v6 ? "[" : "", s->host,
                   v6 ? "]" : "", http_port(v->http));
    if (*s->socket) buf_printf(b, "%sunix socket %s", b->n ? " and " : "", s->socket);
}

void startlog_server(const struct server *v)
{
    const struct settings *s = v->s;
    struct buf b = { 0 };

    write_addresses(v, &b);
    if (auth_is_open(v->auth)) buf_puts(&b, "; no API key is required");
    else
        buf_printf(&b, "; %d API key%s", auth_n_keys(v->auth),
                   auth_n_keys(v->auth) == 1 ? "" : "s");
    log_info("tern %s listens on %s", TERN_VERSION, buf_cstr(&b));
    buf_clear(&b);
    if (s->memory_limit > 0) buf_printf(&b, ", memory %.1f MiB", mib((uint64_t)s->memory_limit));
    for (int i = 0; i < v->n_device_limits; i++)
        buf_printf(&b, ", %s %.1f MiB", v->device_limits[i].device, mib(v->device_limits[i].bytes));
    if (s->rate_per_min)
        buf_printf(&b, ", %lld requests per minute for a tenant", (long long)s->rate_per_min);
    if (s->concurrency)
        buf_printf(&b, ", %lld requests at once for a tenant", (long long)s->concurrency);
    if (s->deadline_ms) buf_printf(&b, ", deadline %lld ms", (long long)s->deadline_ms);
    log_info("limits: %lld connections, request bodies of %.1f MiB, %.1f s to drain%s",
             (long long)v->max_conns, mib((uint64_t)s->max_body), (double)s->drain_timeout_ms / 1e3,
             buf_cstr(&b));
    buf_release(&b);
}

void startlog_model(const struct pool_instance *m)
{
    struct engine_info i;

    pool_info(m, &i);
    log_info("model '%s' (%s): %s, %.1f M parameters; memory: weights %.1f MiB, KV cache %.1f MiB "
             "(%d blocks of %d tokens, %s), scratch %.1f MiB",
             m->id, m->model->path, i.arch, (double)i.n_params / 1e6, mib(i.weight_bytes),
             mib(i.kv_bytes), i.n_blocks, i.block_tokens, i.kv_type, mib(i.scratch_bytes));
    log_info(
        "model '%s': context of %d tokens, %d sequences at once, %d tokens per step, at most %d "
        "requests and %d prompt tokens queued; %s; loaded in %.0f ms, warmed up in %.0f ms",
        m->id, i.opt.n_ctx, i.opt.max_seqs, i.opt.max_batch, i.opt.max_requests,
        i.opt.max_queue_tokens, i.devices, m->load_ms, m->warm_ms);
    log_info("model '%s': KV cache of %d tokens: %s", m->id, i.opt.kv_tokens, i.sizes);
}

/* A load that takes longer than PROGRESS_MS is logged every so often, as far as it came further. */
static void log_progress(struct server *v, int i)
{
    struct model_note *n = server_note(v, i);
    struct pool_view now;

    if (!n) return;
    pool_view(v->pool, i, &now);
    if (now.state != POOL_LOADING) {
        n->shown_ns = 0;
        return;
    }
    if (n->shown_ns == 0) {
        n->shown_ns = clock_ns();
        n->shown = 0;
    }
    if (now.progress <= n->shown || clock_ms_since(n->shown_ns) < PROGRESS_MS) return;
    log_info("model '%s' is loading: %d %%", pool_at(v->pool, i)->id, now.progress);
    n->shown = now.progress;
    n->shown_ns = clock_ns();
}

void startlog_progress(struct server *v)
{
    for (int i = 0; i < pool_n(v->pool); i++) log_progress(v, i);
}
