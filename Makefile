# `make` explains itself. Every target makes what it needs; the first use of any makes .venv.
.DEFAULT_GOAL := help
.PHONY: help run chat serve test test-all test-clients test-page lint check bench peers bench-server bench-http soak coverage fuzz cross-build docs wheel clean
.NOTPARALLEL:

ENVIRONMENT := sh .ci/environment.sh
PY          := .venv/bin/python
PYTEST      := $(PY) -m pytest

# Settings of run, chat, serve and bench reach the shell through its environment and unexpanded, so that a prompt may
# hold quotes and dollars. PROMPT and TEMP count only when given to make itself: other programs set variables of
# these names.
given = $(if $(filter command,$(firstword $(origin $1))),$(value $1))
set   = $(if $(filter command environment,$(firstword $(origin $1))),$(value $1))
export MAKE_MODEL          := $(call set,MODEL)
export MAKE_PROMPT         := $(call given,PROMPT)
export MAKE_THREADS        := $(call set,THREADS)
export MAKE_TEMP           := $(call given,TEMP)
export MAKE_TOP_P          := $(call set,TOP_P)
export MAKE_TOP_K          := $(call set,TOP_K)
export MAKE_MIN_P          := $(call set,MIN_P)
export MAKE_REPEAT_PENALTY := $(call set,REPEAT_PENALTY)
export MAKE_SEED           := $(call set,SEED)
export MAKE_MAX_TOKENS     := $(call set,MAX_TOKENS)
export MAKE_SKILLS_DIR     := $(call set,SKILLS_DIR)

help:
	@echo 'make run          let a model answer: MODEL=... PROMPT="..." (without MODEL: SmolLM2-135M-Instruct)'
	@echo 'make chat         talk with a model: MODEL=...'
	@echo 'make serve        serve models over HTTP: MODEL=...'
	@echo 'make bench        measure prompt and decode speed: MODEL=...'
	@echo '                  (also THREADS TEMP TOP_P TOP_K MIN_P REPEAT_PENALTY SEED MAX_TOKENS SKILLS_DIR,'
	@echo '                  and ARGS="--any --flags")'
	@echo 'make test         the tests that take minutes'
	@echo 'make test-all     all tests, with real models'
	@echo 'make test-clients tests with the clients of OpenAI, Ollama, Anthropic, LangChain, LiteLLM and llm'
	@echo 'make test-page    the chat page in headless Chromium (Debian: apt install chromium)'
	@echo 'make lint         ruff and mypy'
	@echo 'make check        lint and test'
	@echo 'make coverage     tests with line coverage'
	@echo 'make peers        compare speed with llama.cpp: ONLY=...'
	@echo 'make bench-server many requests at once, beside llama.cpp: ARGS=...'
	@echo 'make bench-http   what HTTP costs at 1, 8 and 32 clients, beside llama.cpp: ARGS=...'
	@echo 'make soak         a server under good and bad clients: MINUTES=30 CLIENTS=32'
	@echo 'make docs         build the documentation as a site (build/site)'
	@echo 'make wheel        build a wheel for this platform (build/dist), without compiler for those who install it'
	@echo 'make fuzz         run the fuzzers, one after the other: SECONDS=60 ONLY=... TOTAL=3600 (in all runs)'
	@echo 'make cross-build  compile the C code for Linux, macOS and Windows on x86-64 and arm64'
	@echo 'make clean        remove what was built (not the models)'
	@$(ENVIRONMENT) check

run chat serve bench:
	@$(ENVIRONMENT) run
	@sh .ci/verb.sh $@ $(value ARGS)

test:
	@$(ENVIRONMENT) test
	@$(PYTEST) -m 'not slow' $(value ARGS)

test-all:
	@$(ENVIRONMENT) test
	@$(PY) -c 'import transformers, fastapi, uvicorn' 2>/dev/null || \
	    $(PY) -m pip install -q 'transformers>=4.57' 'fastapi>=0.115' 'uvicorn>=0.30'
	@$(PYTEST) $(value ARGS)

test-clients:
	@$(ENVIRONMENT) test
	@sh .ci/clients.sh $(value ARGS)

test-page:
	@$(ENVIRONMENT) test
	@$(PY) -c 'import playwright' 2>/dev/null || $(PY) -m pip install -q 'playwright>=1.49'
	@$(PYTEST) tests/test_page.py tests/test_page_browser.py $(value ARGS)

lint:
	@$(ENVIRONMENT) test
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@sh .ci/types.sh

check: lint test

coverage:
	@$(ENVIRONMENT) test
	@$(PY) -m coverage --version >/dev/null 2>&1 || $(PY) -m pip install -q coverage
	@$(PY) -m coverage run --source=ggfw -m pytest -m 'not slow' $(value ARGS)
	@$(PY) -m coverage report --skip-covered --sort=cover

peers:
	@$(ENVIRONMENT) run
	@$(PY) bench/peers.py $(if $(ONLY),--only '$(ONLY)') $(value ARGS)

bench-server:
	@$(ENVIRONMENT) run
	@$(PY) bench/server_load.py $(or $(value MODE),compare) $(value ARGS)

bench-http:
	@$(ENVIRONMENT) run
	@$(PY) bench/http_load.py $(value ARGS)

soak:
	@$(ENVIRONMENT) run
	@$(PY) bench/soak.py --minutes $(or $(MINUTES),30) --clients $(or $(CLIENTS),32) $(value ARGS)

fuzz:
	@$(ENVIRONMENT) test
	@$(PY) -m fuzz $(ONLY) --seconds $(or $(SECONDS),60) $(if $(TOTAL),--total $(TOTAL)) $(value ARGS)

docs:
	@$(ENVIRONMENT) test
	@$(PY) -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || \
		$(PY) -m pip install -q 'mkdocs-material>=9.6' 'mkdocstrings[python]>=0.30'
	@$(PY) .ci/pictures.py --check
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q $(value ARGS)

wheel:
	@$(ENVIRONMENT) run
	@$(PY) .ci/wheel.py $(value ARGS)

cross-build:
	@$(ENVIRONMENT) run
	@$(PY) kernels_c/cross.py $(value ARGS)

clean:
	rm -rf .venv .venv-* .cache build dist *.egg-info kernels_c/lib .coverage .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
