/* pool_info.c - the facts of a model, wherever it runs. */
#include "engine/engine.h"
#include "engine/info.h"
#include "pool/pool.h"
#include "pool/prompter.h"

void pool_info(const struct pool_instance *m, struct engine_info *out)
{
    if (m->engine) engine_info(m->engine, out);
    else if (m->info) *out = *m->info;
    else
        *out = (struct engine_info){ .name = "",
                                     .arch = "",
                                     .task = "",
                                     .dtype = "",
                                     .devices = "",
                                     .kv_type = "",
                                     .sizes = "" };
}

struct str pool_template(const struct pool_instance *m)
{
    struct engine_info info;

    if (m->prompter) return prompter_template(m->prompter, false);
    pool_info(m, &info);
    return info.chat_template ? str_c(info.chat_template) : STR("");
}
