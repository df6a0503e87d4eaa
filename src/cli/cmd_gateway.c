/* cmd_gateway.c - tern gateway: reads the settings and runs the gateway until a signal ends it. */
#include "cli/cmd.h"
#include "cli/servecheck.h"
#include "cluster/gateway.h"
#include "server/settings.h"

int cmd_gateway(int argc, char **argv)
{
    struct settings s;
    struct err e = { 0 };
    bool helped;
    int code = EXIT_OK, rc;

    if (settings_load(&s, argc, argv, &helped, &e) != OK) return cmd_usage("gateway", &e);
    if (!helped) {
        rc = servecheck_gateway(&s, &e);
        if (rc == OK) rc = gateway_run(&s, &e);
        if (rc != OK) code = rc == E_INVALID ? cmd_usage("gateway", &e) : cmd_fail(&e);
    }
    settings_release(&s);
    return code;
}
