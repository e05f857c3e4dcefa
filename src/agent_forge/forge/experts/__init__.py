"""Phase 7, self-guided experts: domains by self-test, one vector of singular values each, chosen per request."""
