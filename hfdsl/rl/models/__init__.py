"""The models behind the ready-made roles; these modules load torch and transformers."""
