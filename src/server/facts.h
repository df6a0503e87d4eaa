/* facts.h - what effective values of settings depend on besides the settings: this machine. */
#ifndef TERN_SERVER_FACTS_H
#define TERN_SERVER_FACTS_H

#include "server/settings.h"

/* Fills cores, memory nodes and memory; the members of a running server stay. */
void facts_read_machine(struct settings_facts *f, const struct settings *s);
#endif
