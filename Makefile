# make ladder    set up .venv from nothing and run the ladder on this machine
# make test      set up .venv from nothing and run the tests
# make lint      formatting, lint, types, import contracts

PYTHON ?= python3
EXTRAS ?= dev
BIN    := .venv/bin
READY  := .venv/.ready

.PHONY: ladder test lint clean
ladder: $(READY)
	$(BIN)/dist-checks run --preset quick

test: $(READY)
	$(BIN)/pytest $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
