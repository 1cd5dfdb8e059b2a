"""The models behind the ready roles; these modules load torch and transformers."""
