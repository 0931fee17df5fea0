//! Devices: the only place where generated code runs, and the only unsafe.
