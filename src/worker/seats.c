#include "worker/seats.h"

#include <stdio.h>

double seats_share(const struct engine_info *i, int k)
{
    double all = 0;

    for (int m = 0; m < i->n_members; m++) all += (double)i->members[m].weight_bytes;
    return all > 0 ? (double)i->members[k].weight_bytes / all : 0;
}

static void write_seat(struct jsonw *w, const struct engine_info *i, int k)
{
    const struct gang_seat *s = &i->members[k];

    jsonw_obj(w);
    jsonw_key(w, "rank"), jsonw_int(w, s->rank);
    jsonw_key(w, "host"), jsonw_str(w, str_c(s->host));
    jsonw_key(w, "pid"), jsonw_int(w, s->pid);
    jsonw_key(w, "device"), jsonw_str(w, str_c(s->device));
    jsonw_key(w, "layers"), jsonw_arr(w);
    jsonw_int(w, s->first_layer), jsonw_int(w, s->end_layer);
    jsonw_end(w);
    jsonw_key(w, "share"), jsonw_num(w, (double)(int)(seats_share(i, k) * 1e4 + 0.5) / 1e4);
    jsonw_key(w, "weight_bytes"), jsonw_int(w, (int64_t)s->weight_bytes);
    jsonw_key(w, "kv_bytes"), jsonw_int(w, (int64_t)s->kv_bytes);
    jsonw_key(w, "scratch_bytes"), jsonw_int(w, (int64_t)s->scratch_bytes);
    jsonw_end(w);
}

void seats_write(struct jsonw *w, const struct engine_info *i, double comm_share)
{
    jsonw_obj(w);
    jsonw_key(w, "tp"), jsonw_int(w, i->tp);
    jsonw_key(w, "pp"), jsonw_int(w, i->pp);
    jsonw_key(w, "transport"), jsonw_str(w, str_c(i->transport ? i->transport : ""));
    if (comm_share >= 0) jsonw_key(w, "comm_share"), jsonw_num(w, comm_share);
    jsonw_key(w, "members"), jsonw_arr(w);
    for (int k = 0; k < i->n_members; k++) write_seat(w, i, k);
    jsonw_end(w);
    jsonw_end(w);
}

/* ---- reading: a worker may say anything ---- */

static int64_t number(const json_t *v, const char *key, int64_t most)
{
    int64_t n = json_integer_value(json_object_get(v, key));

    return n < 0 ? 0 : n > most ? most : n;
}

static void copy_text(char *out, size_t cap, const json_t *v)
{
    const char *s = json_string_value(v);

    snprintf(out, cap, "%s", s ? s : "");
}

static void read_seat(struct gang_seat *s, int rank, const json_t *v)
{
    const int64_t bytes = INT64_C(1) << 56;
    const json_t *layers = json_object_get(v, "layers");
    int64_t first = json_integer_value(json_array_get(layers, 0)),
            end = json_integer_value(json_array_get(layers, 1));

    *s = (struct gang_seat){ .rank = rank,
                             .pid = number(v, "pid", INT32_MAX),
                             .weight_bytes = (uint64_t)number(v, "weight_bytes", bytes),
                             .kv_bytes = (uint64_t)number(v, "kv_bytes", bytes),
                             .scratch_bytes = (uint64_t)number(v, "scratch_bytes", bytes) };
    if (first >= 0 && first <= end && end <= 65536)
        s->first_layer = (int)first, s->end_layer = (int)end;
    copy_text(s->host, sizeof s->host, json_object_get(v, "host"));
    copy_text(s->device, sizeof s->device, json_object_get(v, "device"));
}

void seats_read(const json_t *v, struct arena *a, struct engine_info *out)
{
    const json_t *list = json_object_get(v, "members");
    const char *transport = json_string_value(json_object_get(v, "transport"));
    size_t n = json_array_size(list);
    struct gang_seat *all;

    out->transport = "";
    out->members = NULL;
    out->n_members = out->tp = out->pp = 0;
    if (n < 2 || n > COMM_MAX || !(all = arena_array(a, n, sizeof *all))) return;
    for (size_t i = 0; i < n; i++) read_seat(&all[i], (int)i, json_array_get(list, i));
    if (transport && (transport = arena_cstr(a, str_c(transport)))) out->transport = transport;
    out->members = all;
    out->n_members = (int)n;
    out->tp = (int)number(v, "tp", COMM_MAX);
    out->pp = (int)number(v, "pp", COMM_MAX);
}
