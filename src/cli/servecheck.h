/* servecheck.h - settings of the server that this machine refuses: checked before anything listens.
 *
 * The table of settings knows types and ranges. Whether a device, an instruction set, a memory node
 * or a file is there is known only here. `tern serve` and `tern config check` use the same checks,
 * and a refusal is exit code 2. */
#ifndef TERN_CLI_SERVECHECK_H
#define TERN_CLI_SERVECHECK_H

#include "server/settings.h"

/* OK, or an error whose message names the setting. Also fills s->isa_auto. */
int servecheck(struct settings *s, struct err *e);
/* For tern serve alone: settings that only tern gateway uses would have no effect. */
int servecheck_role(const struct settings *s, struct err *e);
/* The files of tern gateway's settings. */
int servecheck_gateway(const struct settings *s, struct err *e);
#endif
