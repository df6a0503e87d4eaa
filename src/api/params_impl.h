/* params_impl.h - readers of single fields, called by the table in params.c. Private to params*.c.
 *
 * Each reads the value v of the field named `param` into p. E_INVALID or E_NOMEM. */
#ifndef TERN_API_PARAMS_IMPL_H
#define TERN_API_PARAMS_IMPL_H

#include "api/params.h"

typedef int params_fn(struct params *p, struct body_reader *r, const char *param, const json_t *v);

/* params_text.c */
params_fn params_read_messages, params_read_prompt, params_read_stop, params_read_logit_bias;
params_fn params_read_keep_alive; /* also ttl */
params_fn params_read_pairs;      /* as params_read_prompt, but also pairs of texts */

/* params_rerank.c */
params_fn params_read_query, params_read_ranked, params_read_instruction;
/* Every document becomes a pair with the query, which must be of the same kind. Ids are put behind
 * the query's by inputs.c: here, a long query would be copied once for each document. */
int params_join_query(struct params *p, struct body_reader *r);

/* params_tools.c */
params_fn params_read_tools, params_read_tool_choice, params_read_parallel;
params_fn params_read_template_vars, params_read_documents, params_read_thinking;
/* The tool_calls of message i: names and arguments have the right types. */
int params_check_past_calls(struct body_reader *r, size_t i, const json_t *calls);
/* tools, tool_choice and the grammar do not contradict each other. TOOL_NONE removes the tools. */
int params_apply_tool_choice(struct params *p, struct body_reader *r);

/* params_grammar.c */
params_fn params_read_response_format, params_read_structured, params_read_grammar;
#endif
