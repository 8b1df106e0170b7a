"""``spag serve``: models as an OpenAI-compatible endpoint, over the transformers engine or by vLLM's own server.

requests     what a client may send, and what of it an engine can do
models       the served models: weights, tokenizer, and the thread that generates
app          the routes, and answers in OpenAI's shapes
vllm         the command line of vLLM's server
"""
