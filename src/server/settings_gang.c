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
                            .devices = s->devices,
                            .comm = s->comm,
                            .step_ms = s->step_timeout_ms };
    int rc = gang_conf_of(&s->gang, &w, e);

    if (rc == OK) rc = gang_check_device(&s->gang, s->gpu_layers == 0 ? "cpu" : s->device, e);
    return rc;
}
