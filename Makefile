# Two commands on a fresh machine: `make demo` and `make test`. All of them install what they need, once.
VENV := .venv
PYTHON ?= python3
OLDEST := .venv-oldest
PIP_INSTALL = $(1)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-browser check docs diagrams smoke mutants bench test-oldest clean

demo: $(VENV)/.installed-lab
	$(VENV)/bin/saligraft demo $(ARGS)
	@echo "For the command saligraft in this shell: source $(VENV)/bin/activate"

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -n 2 $(ARGS)

# The interactive pages in a real browser; Debian's chromium is installed if it is missing.
test-browser: $(VENV)/.installed-dev
	@test -x /usr/bin/chromium -a -x /usr/bin/chromedriver || { \
	  as_root=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$as_root apt-get update -qq && $$as_root apt-get install -y -qq --no-install-recommends chromium chromium-driver; }
	$(VENV)/bin/python -m pytest tests/browser $(ARGS)

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "The site is in site/: open site/index.html, or for its search run python -m http.server --directory site"

# The site shows the Mermaid diagrams as pictures, since Mermaid itself would come from a CDN. Needs npm and chromium.
diagrams:
	mkdir -p build
	echo '{"executablePath": "/usr/bin/chromium", "args": ["--no-sandbox"]}' > build/browser.json
	echo '{"theme": "neutral", "htmlLabels": false, "flowchart": {"htmlLabels": false}}' > build/mermaid.json
	PUPPETEER_SKIP_DOWNLOAD=1 npx --yes @mermaid-js/mermaid-cli --puppeteerConfigFile build/browser.json \
		--configFile build/mermaid.json --input docs/architecture.md --output docs/images/architecture.svg

# Takes half an hour, so it is not part of CI.
mutants: $(VENV)/.installed-dev
	$(VENV)/bin/python tests/mutants.py $(ARGS)

# Every table and figure of the paper once, in minutes: it shows that all of them run, and nothing else.
smoke: $(VENV)/.installed-dev
	rm -rf runs/smoke  # finished runs, of older code too, are not trained again
	$(VENV)/bin/saligraft reproduce all --scale smoke --out runs/smoke $(ARGS)

bench: $(VENV)/.installed-dev
	$(VENV)/bin/saligraft bench $(ARGS)

# The core (no extra installed) on the oldest torch that pyproject.toml allows.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n 2 $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch brings large wheels: say so, since the first install prints nothing else for minutes.
$(VENV)/.installed-lab: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing saligraft and its laboratory into $(VENV) (several GB with torch; once) ..."
	$(call PIP_INSTALL,$(VENV)) --constraint constraints.txt --editable ".[lab]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-lab
	@echo "Installing the test tools into $(VENV) ..."
	$(call PIP_INSTALL,$(VENV)) --constraint constraints.txt --editable ".[lab,dev]"
	@touch $@

$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(call PIP_INSTALL,$(OLDEST)) "torch==2.4.0" "numpy<2.2" setuptools pytest pytest-xdist hypothesis --editable .
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) build dist site
