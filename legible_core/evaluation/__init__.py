"""Judging a model: minimal pairs, cloze, multiple choice, rolling perplexity.

data        tasks out of local files, as the questions that the harness would ask             imports no torch
encode      a question as rows of tokens: the harness's tokenisation and context limit        imports no torch
scoring     rows to log-likelihoods: sorted, batched, shared prefixes run once
journal     every item's scores as they come, so that an interrupted evaluation goes on
run         a task from questions to its result
harness     the model interface of EleutherAI's lm-evaluation-harness, loaded only when asked for
statistics  means, standard errors, paired differences                                        imports no torch
records     evaluation.json, beside the weights                                               imports no torch
"""
