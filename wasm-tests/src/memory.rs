//! The guest's memory, and the wire form of header maps.

use wasmtime::{AsContext, AsContextMut, Caller, Result, format_err};

use crate::http::Headers;
use crate::vm::VmData;

/// Bytes at `address`; a trap if they are not in memory.
pub(crate) fn read(caller: &mut Caller<'_, VmData>, address: u32, size: u32) -> Result<Vec<u8>> {
    let memory = caller.data().memory.ok_or_else(|| format_err!("no memory"))?;
    let range = address as usize..address as usize + size as usize;
    let bytes = memory.data(caller.as_context()).get(range);
    bytes.map(<[u8]>::to_vec).ok_or_else(|| format_err!("{size} bytes at {address} are not in memory"))
}

/// Writes over memory that the guest owns.
pub(crate) fn write(caller: &mut Caller<'_, VmData>, address: u32, bytes: &[u8]) -> Result<()> {
    let memory = caller.data().memory.ok_or_else(|| format_err!("no memory"))?;
    memory.write(caller.as_context_mut(), address as usize, bytes)?;
    Ok(())
}

/// Gives bytes away: into memory that the guest allocates, address and size where it wants them. False if it has no
/// memory left.
pub(crate) fn give(caller: &mut Caller<'_, VmData>, bytes: &[u8], data: u32, size: u32) -> Result<bool> {
    let mut address = 0;
    if !bytes.is_empty() {
        let allocate = caller.data().allocate.clone().ok_or_else(|| format_err!("no allocator"))?;
        address = allocate.call(caller.as_context_mut(), bytes.len() as u32)?;
        if address == 0 {
            return Ok(false);
        }
        write(caller, address, bytes)?;
    }
    write(caller, data, &address.to_le_bytes())?;
    write(caller, size, &(bytes.len() as u32).to_le_bytes())?;
    Ok(true)
}

/// Count, sizes, then names and values with a NUL after each.
pub(crate) fn serialize(headers: &Headers) -> Vec<u8> {
    let mut out = (headers.len() as u32).to_le_bytes().to_vec();
    for (name, value) in headers {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in headers {
        out.extend_from_slice(name);
        out.push(0);
        out.extend_from_slice(value);
        out.push(0);
    }
    out
}
