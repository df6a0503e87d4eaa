/* settings_gang.c - the configuration of gangs, from the settings' words. */
#include "server/settings.h"

#include <string.h>

int settings_gang(struct settings *s, struct err *e)
{
    struct gang_words w = { .tp = (int)s->tp,
                            .pp = (int)s->pp,
                            .ep = s->ep,
                            .transport = strcmp(s->transport, "auto") == 0 ? NULL : s->transport,
                            .hosts = s->hosts,
                            .agent = s->agent,
                            .listen = s->gang_listen,
                            .program = s->remote_tern,
                            .split = s->split,
                            .wire = s->wire,
                            .step_ms = s->step_timeout_ms };
    int rc = gang_conf_of(&s->gang, &w, e);

    if (rc == OK && s->tp * s->pp > 1 && strcmp(s->device, "cpu") != 0 && s->gpu_layers != 0 &&
        s->tp > 1)
        rc = err_set(e, E_INVALID, "tp %d: members compute on CPUs, but device is '%s'; use pp",
                     (int)s->tp, s->device);
    return rc;
}
