//! The imports of the plugin: proxy-wasm ABI 0.2.1 and a little WASI.
//!
//! Each is counted and can be made to fail. Arguments that no correct plugin passes (memory that is not there, a bare
//! cluster name as a gRPC upstream) trap, so that no test passes over them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmtime::{Caller, Linker, Result, bail, format_err};

use crate::grpc::{GrpcStream, parse_upstream};
use crate::host::{LogLine, Process};
use crate::http;
use crate::memory::{give, read, serialize, write};
use crate::vm::VmData;

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
const BAD_ARGUMENT: u32 = 2;
const NO_MEMORY: u32 = 6;
const EMPTY: u32 = 7;
const CAS_MISMATCH: u32 = 8;
const INTERNAL_FAILURE: u32 = 10;

const ENV: &str = "env";
const WASI: &str = "wasi_snapshot_preview1";

type Ctx<'a> = Caller<'a, VmData>;

/// Defines everything.
pub(crate) fn link(linker: &mut Linker<VmData>) -> Result<()> {
    link_base(linker)?;
    link_http(linker)?;
    link_shared(linker)?;
    link_grpc(linker)?;
    link_metrics(linker)?;
    link_wasi(linker)
}

fn link_base(linker: &mut Linker<VmData>) -> Result<()> {
    linker.func_wrap(ENV, "proxy_log", |mut caller: Ctx<'_>, level: u32, data: u32, size: u32| {
        let message = String::from_utf8_lossy(&read(&mut caller, data, size)?).into_owned();
        let status = enter(&caller, "proxy_log");
        if status == OK {
            lock(&process(&caller)).log.push(LogLine { level, message });
        }
        Ok(status)
    })?;
    linker.func_wrap(ENV, "proxy_get_current_time_nanoseconds", |mut caller: Ctx<'_>, time: u32| {
        answer(&mut caller, "proxy_get_current_time_nanoseconds", |caller| {
            let now = {
                let process = process(caller);
                let mut process = lock(&process);
                process.tick_clock() + process.wall_offset
            };
            write(caller, time, &now.to_le_bytes())?;
            Ok(OK)
        })
    })?;
    linker.func_wrap(ENV, "proxy_set_tick_period_milliseconds", |mut caller: Ctx<'_>, period: u32| {
        answer(&mut caller, "proxy_set_tick_period_milliseconds", |caller| {
            let context = caller.data().effective;
            caller.data_mut().tick_periods.insert(context, period);
            Ok(OK)
        })
    })?;
    linker.func_wrap(ENV, "proxy_set_effective_context", |mut caller: Ctx<'_>, context: u32| {
        answer(&mut caller, "proxy_set_effective_context", |caller| {
            let data = caller.data_mut();
            if !data.roots.contains(&context) && !data.exchanges.contains_key(&context) {
                return Ok(BAD_ARGUMENT);
            }
            data.effective = context;
            Ok(OK)
        })
    })?;
    linker.func_wrap(
        ENV,
        "proxy_get_property",
        |mut caller: Ctx<'_>, path: u32, path_size: u32, data: u32, size: u32| {
            answer(&mut caller, "proxy_get_property", |caller| {
                let path = read(caller, path, path_size)?;
                let value = lock(&process(caller)).properties.get(&path).cloned();
                give_or_not_found(caller, value, data, size)
            })
        },
    )?;
    Ok(())
}

fn link_http(linker: &mut Linker<VmData>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_get_buffer_bytes",
        |mut caller: Ctx<'_>, kind: u32, start: u32, max: u32, data: u32, size: u32| {
            answer(&mut caller, "proxy_get_buffer_bytes", |caller| {
                let vm = caller.data();
                let buffer = match kind {
                    0 => vm.exchanges.get(&vm.effective).map(|exchange| exchange.buffer.as_slice()),
                    5 => vm.grpc_message.as_deref(),
                    7 => Some(vm.configuration.as_slice()),
                    _ => None,
                };
                let Some(buffer) = buffer else { return Ok(NOT_FOUND) };
                let start = (start as usize).min(buffer.len());
                let end = start.saturating_add(max as usize).min(buffer.len());
                let bytes = buffer.get(start..end).unwrap_or_default().to_vec();
                give_or_not_found(caller, Some(bytes), data, size)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_header_map_pairs",
        |mut caller: Ctx<'_>, map: u32, data: u32, size: u32| {
            answer(&mut caller, "proxy_get_header_map_pairs", |caller| match headers(caller, map) {
                Some(headers) => {
                    let bytes = serialize(headers);
                    give_or_not_found(caller, Some(bytes), data, size)
                }
                None => Ok(BAD_ARGUMENT),
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_header_map_value",
        |mut caller: Ctx<'_>, map: u32, key: u32, key_size: u32, data: u32, size: u32| {
            answer(&mut caller, "proxy_get_header_map_value", |caller| {
                let key = read(caller, key, key_size)?;
                let Some(headers) = headers(caller, map) else { return Ok(BAD_ARGUMENT) };
                let value = http::get(headers, &key).map(<[u8]>::to_vec);
                give_or_not_found(caller, value, data, size)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_remove_header_map_value",
        |mut caller: Ctx<'_>, map: u32, key: u32, key_size: u32| {
            answer(&mut caller, "proxy_remove_header_map_value", |caller| {
                let key = read(caller, key, key_size)?;
                let Some(headers) = headers(caller, map) else { return Ok(BAD_ARGUMENT) };
                headers.retain(|(name, _)| *name != key);
                Ok(OK)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_replace_header_map_value",
        |mut caller: Ctx<'_>, map: u32, key: u32, key_size: u32, value: u32, value_size: u32| {
            answer(&mut caller, "proxy_replace_header_map_value", |caller| {
                let (key, value) = (read(caller, key, key_size)?, read(caller, value, value_size)?);
                let Some(headers) = headers(caller, map) else { return Ok(BAD_ARGUMENT) };
                http::replace(headers, &key, &value);
                Ok(OK)
            })
        },
    )?;
    linker.func_wrap(ENV, "proxy_continue_stream", |mut caller: Ctx<'_>, stream: u32| {
        answer(&mut caller, "proxy_continue_stream", |caller| {
            let vm = caller.data_mut();
            match vm.exchanges.get_mut(&vm.effective) {
                Some(exchange) if stream == 0 => {
                    exchange.resume = true;
                    Ok(OK)
                }
                _ => Ok(BAD_ARGUMENT),
            }
        })
    })?;
    Ok(())
}

fn link_shared(linker: &mut Linker<VmData>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_get_shared_data",
        |mut caller: Ctx<'_>, key: u32, key_size: u32, data: u32, size: u32, cas: u32| {
            answer(&mut caller, "proxy_get_shared_data", |caller| {
                let key = read(caller, key, key_size)?;
                let Some((value, version)) = lock(&process(caller)).shared.get(&key).cloned() else {
                    return Ok(NOT_FOUND);
                };
                write(caller, cas, &version.to_le_bytes())?;
                give_or_not_found(caller, Some(value), data, size)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_shared_data",
        |mut caller: Ctx<'_>, key: u32, key_size: u32, value: u32, value_size: u32, cas: u32| {
            answer(&mut caller, "proxy_set_shared_data", |caller| {
                let (key, value) = (read(caller, key, key_size)?, read(caller, value, value_size)?);
                let written = lock(&process(caller)).shared.set(&key, &value, cas);
                Ok(if written { OK } else { CAS_MISMATCH })
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_register_shared_queue",
        |mut caller: Ctx<'_>, name: u32, name_size: u32, id: u32| {
            answer(&mut caller, "proxy_register_shared_queue", |caller| {
                let name = read(caller, name, name_size)?;
                let (vm, context) = (caller.data().number, caller.data().effective);
                let queue = lock(&process(caller)).queues.register(&name, vm, context);
                write(caller, id, &queue.to_le_bytes())?;
                Ok(OK)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_enqueue_shared_queue",
        |mut caller: Ctx<'_>, id: u32, value: u32, size: u32| {
            answer(&mut caller, "proxy_enqueue_shared_queue", |caller| {
                let value = read(caller, value, size)?;
                let known = lock(&process(caller)).queues.enqueue(id, value);
                Ok(if known { OK } else { NOT_FOUND })
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_dequeue_shared_queue",
        |mut caller: Ctx<'_>, id: u32, data: u32, size: u32| {
            answer(&mut caller, "proxy_dequeue_shared_queue", |caller| {
                let entry = lock(&process(caller)).queues.dequeue(id);
                match entry {
                    Some(Some(value)) => give_or_not_found(caller, Some(value), data, size),
                    Some(None) => Ok(EMPTY),
                    None => Ok(NOT_FOUND),
                }
            })
        },
    )?;
    Ok(())
}

fn link_grpc(linker: &mut Linker<VmData>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_grpc_stream",
        |mut caller: Ctx<'_>,
         upstream: u32,
         upstream_size: u32,
         service: u32,
         service_size: u32,
         method: u32,
         method_size: u32,
         _metadata: u32,
         _metadata_size: u32,
         token: u32| {
            answer(&mut caller, "proxy_grpc_stream", |caller| {
                let upstream = read(caller, upstream, upstream_size)?;
                let service = String::from_utf8(read(caller, service, service_size)?)?;
                let method = String::from_utf8(read(caller, method, method_size)?)?;
                let Some((cluster, authority)) = parse_upstream(&upstream) else {
                    bail!("the upstream of a gRPC stream is not a GrpcService")
                };
                let (vm, context) = (caller.data().number, caller.data().effective);
                if !caller.data().roots.contains(&context) {
                    return Ok(BAD_ARGUMENT);
                }
                let opened = {
                    let process = process(caller);
                    let mut process = lock(&process);
                    if !process.grpc_reachable {
                        return Ok(INTERNAL_FAILURE);
                    }
                    let token = process.streams.len() as u32 * 2 + 3;
                    process.streams.push(GrpcStream {
                        token,
                        vm,
                        context,
                        cluster,
                        authority,
                        service,
                        method,
                        sent: Vec::new(),
                        half_closed: false,
                        open: true,
                    });
                    token
                };
                write(caller, token, &opened.to_le_bytes())?;
                Ok(OK)
            })
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_grpc_send",
        |mut caller: Ctx<'_>, token: u32, message: u32, size: u32, end_of_stream: u32| {
            answer(&mut caller, "proxy_grpc_send", |caller| {
                let message = read(caller, message, size)?;
                Ok(with_stream(caller, token, |stream| {
                    stream.sent.push(message);
                    stream.half_closed = end_of_stream != 0;
                }))
            })
        },
    )?;
    linker.func_wrap(ENV, "proxy_grpc_cancel", |mut caller: Ctx<'_>, token: u32| {
        answer(&mut caller, "proxy_grpc_cancel", |caller| {
            Ok(with_stream(caller, token, |stream| stream.open = false))
        })
    })?;
    Ok(())
}

fn link_metrics(linker: &mut Linker<VmData>) -> Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_define_metric",
        |mut caller: Ctx<'_>, _kind: u32, name: u32, name_size: u32, id: u32| {
            answer(&mut caller, "proxy_define_metric", |caller| {
                let name = String::from_utf8(read(caller, name, name_size)?)?;
                let defined = lock(&process(caller)).metrics.define(name);
                write(caller, id, &defined.to_le_bytes())?;
                Ok(OK)
            })
        },
    )?;
    linker.func_wrap(ENV, "proxy_increment_metric", |mut caller: Ctx<'_>, id: u32, by: i64| {
        answer(&mut caller, "proxy_increment_metric", |caller| {
            let known = lock(&process(caller)).metrics.increment(id, by);
            Ok(if known { OK } else { BAD_ARGUMENT })
        })
    })?;
    linker.func_wrap(ENV, "proxy_record_metric", |mut caller: Ctx<'_>, id: u32, value: u64| {
        answer(&mut caller, "proxy_record_metric", |caller| {
            let known = lock(&process(caller)).metrics.record(id, value);
            Ok(if known { OK } else { BAD_ARGUMENT })
        })
    })?;
    Ok(())
}

fn link_wasi(linker: &mut Linker<VmData>) -> Result<()> {
    const SUCCESS: u32 = 0;
    const BAD_FILE: u32 = 8;
    linker.func_wrap(
        WASI,
        "clock_time_get",
        |mut caller: Ctx<'_>, clock: u32, _precision: u64, time: u32| {
            answer(&mut caller, "clock_time_get", |caller| {
                let now = {
                    let process = process(caller);
                    let mut process = lock(&process);
                    let offset = if clock == 0 { process.wall_offset } else { 0 };
                    process.tick_clock() + offset
                };
                write(caller, time, &now.to_le_bytes())?;
                Ok(SUCCESS)
            })
        },
    )?;
    linker.func_wrap(WASI, "random_get", |mut caller: Ctx<'_>, data: u32, size: u32| {
        answer(&mut caller, "random_get", |caller| {
            let seed = caller.data().number as u64 * 0x9e37_79b9 + 1;
            let bytes: Vec<u8> =
                (0..u64::from(size)).map(|at| (seed.wrapping_mul(at + 1) >> 5) as u8).collect();
            write(caller, data, &bytes)?;
            Ok(SUCCESS)
        })
    })?;
    for sizes in ["environ_sizes_get", "args_sizes_get"] {
        linker.func_wrap(WASI, sizes, |mut caller: Ctx<'_>, count: u32, size: u32| {
            write(&mut caller, count, &[0; 4])?;
            write(&mut caller, size, &[0; 4])?;
            Ok(SUCCESS)
        })?;
    }
    for get in ["environ_get", "args_get"] {
        linker.func_wrap(WASI, get, |_: u32, _: u32| SUCCESS)?;
    }
    linker.func_wrap(
        WASI,
        "fd_write",
        |mut caller: Ctx<'_>, fd: u32, vectors: u32, count: u32, written: u32| {
            let mut message = Vec::new();
            for at in 0..count.min(1024) {
                let vector = read(&mut caller, vectors + at * 8, 8)?;
                let field = |range| vector.get(range).and_then(|bytes: &[u8]| bytes.try_into().ok());
                let (data, size) = (field(0..4).map(u32::from_le_bytes), field(4..8).map(u32::from_le_bytes));
                message.extend(read(&mut caller, data.unwrap_or(0), size.unwrap_or(0))?);
            }
            write(&mut caller, written, &(message.len() as u32).to_le_bytes())?;
            let message = String::from_utf8_lossy(&message).into_owned();
            let level = if fd == 1 { 2 } else { 4 };
            lock(&process(&caller)).log.push(LogLine { level, message });
            Ok(SUCCESS)
        },
    )?;
    for (name, arguments) in [("fd_close", 1), ("fd_fdstat_get", 2), ("fd_prestat_get", 2)] {
        match arguments {
            1 => linker.func_wrap(WASI, name, |_: u32| BAD_FILE)?,
            _ => linker.func_wrap(WASI, name, |_: u32, _: u32| BAD_FILE)?,
        };
    }
    linker.func_wrap(WASI, "fd_prestat_dir_name", |_: u32, _: u32, _: u32| BAD_FILE)?;
    linker.func_wrap(WASI, "fd_seek", |_: u32, _: u64, _: u32, _: u32| BAD_FILE)?;
    linker.func_wrap(WASI, "sched_yield", || SUCCESS)?;
    linker
        .func_wrap(WASI, "proc_exit", |code: u32| -> Result<()> { Err(format_err!("proc_exit({code})")) })?;
    Ok(())
}

impl Process {
    fn tick_clock(&mut self) -> u64 {
        self.clock += self.clock_step;
        self.clock
    }
}

/// Counts the call; fails it if it is to fail.
fn answer(
    caller: &mut Ctx<'_>,
    name: &'static str,
    f: impl FnOnce(&mut Ctx<'_>) -> Result<u32>,
) -> Result<u32> {
    match enter(caller, name) {
        OK => f(caller),
        status => Ok(status),
    }
}

fn enter(caller: &Ctx<'_>, name: &'static str) -> u32 {
    let process = process(caller);
    let mut process = lock(&process);
    *process.calls.entry(name).or_default() += 1;
    process.failures.get(name).copied().unwrap_or(OK)
}

fn process(caller: &Ctx<'_>) -> Arc<Mutex<Process>> {
    caller.data().process.clone()
}

fn lock(process: &Mutex<Process>) -> MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

fn headers<'a>(caller: &'a mut Ctx<'_>, map: u32) -> Option<&'a mut http::Headers> {
    let vm = caller.data_mut();
    let exchange = vm.exchanges.get_mut(&vm.effective)?;
    match map {
        0 => Some(&mut exchange.request_headers),
        2 => Some(&mut exchange.response_headers),
        _ => None,
    }
}

fn with_stream(caller: &Ctx<'_>, token: u32, f: impl FnOnce(&mut GrpcStream)) -> u32 {
    let (process, vm) = (process(caller), caller.data().number);
    let mut process = lock(&process);
    match process.streams.iter_mut().find(|stream| stream.token == token && stream.vm == vm && stream.open) {
        Some(stream) => {
            f(stream);
            OK
        }
        None => NOT_FOUND,
    }
}

fn give_or_not_found(caller: &mut Ctx<'_>, value: Option<Vec<u8>>, data: u32, size: u32) -> Result<u32> {
    match value {
        Some(value) => Ok(if give(caller, &value, data, size)? { OK } else { NO_MEMORY }),
        None => Ok(NOT_FOUND),
    }
}
