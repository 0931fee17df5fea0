//! Models as tensor expressions.
