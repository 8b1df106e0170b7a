"""``spag serve``: models as an OpenAI-compatible endpoint, by vLLM's own server on GPUs, else over the transformers
engine.

requests     what a client may send, and the requests to the engine
models       a served model: tokenizer, prompts, and the thread that generates
app          the routes, and answers in OpenAI's shapes
vllm         the command line of vLLM's server
"""
