"""``spag serve``: models as an OpenAI-compatible endpoint, by vLLM's own server on GPUs, else with the transformers
engine.

requests     validation of client requests, and the requests to the engine
models       a served model: tokenizer, prompts, and the thread that generates
app          the routes, and responses in OpenAI's format
vllm         the command line of vLLM's server
guard        the token of vLLM's server
"""
