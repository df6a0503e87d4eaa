/* metrics_gang.c - metrics of models that run over several processes. Members are labelled by their rank:
 * at most 64 of each model. Without such models there are none of these. */
#include "base/stat.h"
#include "engine/info.h"
#include "engine/stats.h"
#include "pool/pool.h"
#include "server/metrics.h"
#include "server/server_impl.h"

#include <stdio.h>

enum gang_row { MEMBERS, COMM_SHARE, STEP_S, COMM_S, N_ROWS };

static const struct {
    const char *name, *help;
} rows[N_ROWS] = {
    [MEMBERS] = { "tern_gang_members", "Processes that the model runs over" },
    [COMM_SHARE] = { "tern_gang_comm_share",
                     "Share of recent steps that the leader communicated or waited for members" },
    [STEP_S] = { "tern_gang_step_seconds_total", "Time of steps of the leader" },
    [COMM_S] = { "tern_gang_comm_seconds_total", "Of that, communication and waiting for members" },
};

static double value_of(enum gang_row row, const struct engine_info *i, const struct engine_stats *s)
{
    switch (row) {
    case MEMBERS: return i->n_members;
    case COMM_SHARE: return (double)gauge_get(&s->comm_ppm) / 1e6;
    case STEP_S: return (double)counter_get(&s->gang_step_ns) / 1e9;
    default: return (double)counter_get(&s->gang_comm_ns) / 1e9;
    }
}

/* A model that is READY and has members. */
static bool find_gang(struct server *v, int i, struct engine_info *info,
                      const struct engine_stats **s)
{
    *info = (struct engine_info){ 0 };
    *s = server_stats(v, i);
    return *s && server_engine_info(v, i, info) && info->n_members > 0;
}

static void write_row(struct server *v, enum gang_row row, struct buf *b, struct buf *out)
{
    const char *help = rows[row].help;
    const struct engine_stats *s;
    struct engine_info info;

    for (int i = 0; i < pool_n(v->pool); i++) {
        if (!find_gang(v, i, &info, &s)) continue;
        buf_clear(b);
        stat_label(b, "model", str_c(pool_at(v->pool, i)->id));
        stat_gauge(out, rows[row].name, metrics_labels(b, out), help, value_of(row, &info, s));
        help = NULL;
    }
}

static void write_member_bytes(struct server *v, struct buf *b, struct buf *out)
{
    const char *help = "Memory of a member: weights, KV cache and scratch";
    const struct engine_stats *s;
    struct engine_info info;

    for (int i = 0; i < pool_n(v->pool); i++) {
        if (!find_gang(v, i, &info, &s)) continue;
        for (int k = 0; k < info.n_members; k++, help = NULL) {
            const struct gang_seat *m = &info.members[k];
            char rank[16];
            snprintf(rank, sizeof rank, "%d", k);
            buf_clear(b);
            stat_label(b, "model", str_c(pool_at(v->pool, i)->id));
            stat_label(b, "rank", str_c(rank));
            stat_gauge(out, "tern_gang_member_bytes", metrics_labels(b, out), help,
                       (double)(m->weight_bytes + m->kv_bytes + m->scratch_bytes));
        }
    }
}

void metrics_write_gangs(struct server *v, struct buf *out)
{
    struct buf b = { 0 };

    if (v->s->tp * v->s->pp < 2) return;
    for (int row = 0; row < N_ROWS; row++) write_row(v, (enum gang_row)row, &b, out);
    write_member_bytes(v, &b, out);
    buf_release(&b);
}
