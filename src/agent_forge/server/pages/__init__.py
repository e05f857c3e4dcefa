"""The pages of the dashboard, one module each; `dashboard.pages` discovers modules with a `PAGE`."""
